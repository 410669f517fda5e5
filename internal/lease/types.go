package lease

import (
	"fmt"
	"time"

	"github.com/afxdp-project/afxdp/pkg/netdev"
)

// Pod is the owner of a lease.
type Pod struct {
	UID       string `json:"uid"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

func (p Pod) String() string { return p.Namespace + "/" + p.Name }

// Attachment is one CNI attachment: a lease lives as long as one of its own is left.
type Attachment struct {
	Network     string `json:"network"`
	ContainerID string `json:"containerID"` // of the sandbox
	Ifname      string `json:"ifname"`
}

// Settings are what the device's pool asks for, as it was when the lease began.
type Settings struct {
	Pool              string        `json:"pool"`
	ZeroCopy          ZeroCopy      `json:"zeroCopy"`
	NeedWakeup        bool          `json:"needWakeup"`
	MultiBuffer       bool          `json:"multiBuffer"`
	AllowGeneric      bool          `json:"allowGeneric"`
	CountUnclaimed    bool          `json:"countUnclaimed"`
	BusyPollBudget    int           `json:"busyPollBudget"` // packets; 0: no busy polling and no tuning
	BusyPollTimeout   time.Duration `json:"busyPollTimeout"`
	DeferHardIRQs     uint32        `json:"deferHardIRQs"`
	GROFlushTimeout   time.Duration `json:"groFlushTimeout"`
	IRQSuspendTimeout time.Duration `json:"irqSuspendTimeout,omitempty"` // 0: as it is
	Threaded          bool          `json:"threaded,omitempty"`          // the queue's NAPI is polled by a kernel thread
	ThreadCPUs        netdev.CPUs   `json:"threadCPUs,omitempty"`        // on which that may run; empty: as it is
	IRQCPUs           netdev.CPUs   `json:"irqCPUs,omitempty"`           // that serve the queue's interrupt; empty: as it is
	MaxUMEM           uint64        `json:"maxUMEM"`                     // bytes
	MaxFrames         uint32        `json:"maxFrames"`
	MaxRingSize       uint32        `json:"maxRingSize"` // entries
}

// ZeroCopy is the pool's word on zero-copy.
type ZeroCopy string

// The values of ZeroCopy.
const (
	ZeroCopyAuto    ZeroCopy = "auto"
	ZeroCopyRequire ZeroCopy = "require"
	ZeroCopyNever   ZeroCopy = "never"
)

// State is where a lease stands.
type State string

// The states, in the order of a lease's life.
const (
	// StateActivating: the NIC is being changed. After a crash the lease is undone; its ADD did not succeed.
	StateActivating State = "activating"
	// StateActive: the pod can open the device.
	StateActive State = "active"
	// StateEnding: the NIC is being put back. After a crash that goes on.
	StateEnding State = "ending"
	// StateHeld: all is put back, but a socket still holds the queue. The device is not healthy until it is free.
	StateHeld State = "held"
)

// Lease is the journal's document of one device's lease.
type Lease struct {
	Device      string          `json:"device"`
	NIC         string          `json:"nic"` // key of the NIC's document
	Identity    netdev.Identity `json:"identity"`
	Queue       int             `json:"queue"`
	Pod         Pod             `json:"pod"`
	NetnsCookie uint64          `json:"netnsCookie"`
	Attachments []Attachment    `json:"attachments"`
	Epoch       uint64          `json:"epoch"`
	State       State           `json:"state"`
	Settings    Settings        `json:"settings"`
	Socket      *Socket         `json:"socket,omitempty"`
	// Predecessor is the pod whose lease of the queue ended when this one began. Until the queue has been opened, its
	// processes may hold it still.
	Predecessor *Pod `json:"predecessor,omitempty"`
}

// Sandbox returns the container id of the pod's sandbox.
func (l *Lease) Sandbox() string {
	if len(l.Attachments) == 0 {
		return ""
	}
	return l.Attachments[0].ContainerID
}

// holder returns the pod whose processes may hold the queue.
func (l *Lease) holder() Pod {
	if l.Socket == nil && l.Predecessor != nil {
		return *l.Predecessor
	}
	return l.Pod
}

// Socket is the AF_XDP socket that was last made for a lease. It may be gone.
type Socket struct {
	Cookie   uint64 `json:"cookie"` // SO_COOKIE
	Group    uint64 `json:"group"`  // cookie of the socket with which the UMEM was registered
	ZeroCopy bool   `json:"zeroCopy"`
	Frames   uint32 `json:"frames,omitempty"` // of the UMEM; 0: not known
}

// nicDoc is the journal's document of one NIC.
type nicDoc struct {
	Identity    netdev.Identity `json:"identity"`
	NetnsCookie uint64          `json:"netnsCookie"`
	PinDir      string          `json:"pinDir"`
	// MultiBuffer and CountUnclaimed are as the pool of the NIC's first lease has them.
	MultiBuffer    bool `json:"multiBuffer"`
	CountUnclaimed bool `json:"countUnclaimed"`
	// ZeroCopy is what a trial bind found, or nil without one.
	ZeroCopy *zeroCopy `json:"zeroCopy,omitempty"`
	// Knobs are in the order in which they were first changed.
	Knobs []*knob `json:"knobs,omitempty"`
}

// Device names a device and says where it is.
type Device struct {
	ID    string
	Link  netdev.Link
	Queue int
}

// RefusedError is a request that cannot be met as things stand; Reason says what the user can do.
type RefusedError struct{ Reason string }

func (e *RefusedError) Error() string { return e.Reason }

func refuse(format string, args ...any) error { return &RefusedError{fmt.Sprintf(format, args...)} }
