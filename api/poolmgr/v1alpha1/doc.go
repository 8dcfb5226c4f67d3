// Package poolmgrv1alpha1 is the public contract of poolmgr: the messages and services of the protocol package
// poolmgr.v1alpha1, generated from the .proto files beside it, which hold the descriptions. It has no behaviour of
// its own. Numbers below 100 are shared with other people's clients and hosts and never change; ours go on from 100.
package poolmgrv1alpha1
