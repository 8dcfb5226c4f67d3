// Package microvmsshproxyv1alpha1 is flintlock's service for reaching a machine's SSH server through its host
// (protocol package microvmsshproxy.services.api.v1alpha1), generated from the .proto file beside it: poolmgr calls it
// on hosts, microvmd serves it. Names and numbers are flintlock's and never change here.
package microvmsshproxyv1alpha1
