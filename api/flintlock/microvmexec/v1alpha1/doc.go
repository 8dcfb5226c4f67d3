// Package microvmexecv1alpha1 is flintlock's service for running commands inside machines (protocol package
// microvmexec.services.api.v1alpha1), generated from the .proto file beside it: poolmgr calls it on hosts, microvmd
// serves it. Names and numbers are flintlock's and never change here.
package microvmexecv1alpha1
