// Package microvmv1alpha1 is flintlock's service for machines (protocol package microvm.services.api.v1alpha1),
// generated from the .proto file beside it: poolmgr calls it on hosts, microvmd serves it. Names and numbers are
// flintlock's and never change here.
package microvmv1alpha1
