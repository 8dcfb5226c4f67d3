// Package server is poolmgr's public face: the gRPC services and the HTTP endpoints of a daemon. A method decodes,
// calls one verb, and encodes; it decides nothing. Errors go through one map, so that a refusal has the same code
// everywhere.
package server
