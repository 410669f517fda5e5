// Package agentapi is the gRPC API between the CNI plugin and the node agent.
package agentapi

//go:generate protoc -I . --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative agent.proto
