package cni

import (
	"fmt"

	"github.com/containernetworking/cni/pkg/types"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Codes of the plugin's own, from 100 on as the CNI specification wants it. docs/cni.md explains them to users.
const (
	codeRefused       uint = 100 // the NIC's or the node's state does not allow the attachment
	codeUnknownDevice uint = 101 // the device is not one of the pod's, or the agent does not know it
	codeNotInForce    uint = 102 // CHECK found that an attachment is not in force
	codeTaken         uint = 103 // the device is leased to another pod
)

const adviceAgent = "is the node agent, afxdp-deviceplugin, running on this node? See its log"

// failf returns a CNI error with a code and no advice.
func failf(code uint, format string, a ...any) *types.Error {
	return types.NewError(code, fmt.Sprintf(format, a...), "")
}

// agentCode translates the class of an agent's error into a CNI error code.
func agentCode(err error) uint {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.ResourceExhausted, codes.Aborted:
		return types.ErrTryAgainLater
	case codes.InvalidArgument, codes.OutOfRange:
		return types.ErrInvalidNetworkConfig
	case codes.FailedPrecondition:
		return codeRefused
	case codes.NotFound:
		return codeUnknownDevice
	case codes.AlreadyExists, codes.PermissionDenied:
		return codeTaken
	default:
		return types.ErrInternal
	}
}

// agentError turns the error of a call to the agent into the CNI error that the runtime gets.
func agentError(doing, socket string, err error) *types.Error {
	code := agentCode(err)
	msg := fmt.Sprintf("%s: %s", doing, status.Convert(err).Message())
	switch {
	case unreachable(err):
		return types.NewError(code, fmt.Sprintf("%s: ask the agent at %s: %s", doing, socket, status.Convert(err).Message()),
			adviceAgent)
	case code == types.ErrInternal:
		return types.NewError(code, msg, "see the agent's log")
	}
	return types.NewError(code, msg, "")
}

// unreachable reports whether err says that the agent is down or did not answer in time, so that nothing is known about
// what it did.
func unreachable(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return true
	}
	return false
}
