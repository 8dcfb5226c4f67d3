// Package vmtypes holds flintlock's messages about microVMs (protocol package flintlock.types), generated from the
// .proto file beside it, which holds the descriptions. Names and numbers are flintlock's and never change here.
package vmtypes
