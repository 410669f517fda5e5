package client

import (
	"errors"
	"fmt"

	"github.com/afxdp-project/afxdp/internal/wire"
)

// Error is the agent's refusal of a request, or its reason to end the connection. errors.As finds it in the errors of
// this package.
type Error = wire.Error

// Code says what kind of Error it is.
type Code = wire.Code

// The codes on which a program may decide. docs/protocol.md has all.
const (
	CodeNotLeased   = wire.CodeNotLeased   // the pod has no lease: its CNI ADD has not been, or its lease has ended
	CodeLimit       = wire.CodeLimit       // above a limit of the pool
	CodeInvalid     = wire.CodeInvalid     // a value that cannot be
	CodeBusy        = wire.CodeBusy        // another client or process holds the queue: try again later
	CodeUnsupported = wire.CodeUnsupported // the kernel, the driver or the pool cannot do it
	CodeNoDevice    = wire.CodeNoDevice    // the NIC is gone
	CodeNotYours    = wire.CodeNotYours    // the socket is not one that the agent made for the lease
	CodeEnded       = wire.CodeEnded       // the lease ended while the client was connected
)

// refusal returns the error in an answer.
func refusal(r wire.Received) error {
	if e, ok := r.Message.(*wire.Error); ok {
		return fmt.Errorf("the agent refused: %w", e)
	}
	return nil
}

func hasCode(err error, code Code) bool {
	var e *wire.Error
	return errors.As(err, &e) && e.Code == code
}
