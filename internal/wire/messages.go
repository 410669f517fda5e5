package wire

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// Hello opens a connection: the versions that the client speaks.
type Hello struct {
	MinVersion uint16
	MaxVersion uint16
	Flags      uint32 // 0; not looked at, so that it may mean something in a later version
}

// Welcome answers Hello: the chosen version, the limits and the allocation's devices.
type Welcome struct {
	Version     uint16
	Pool        string // at most 63 bytes
	MaxUMEM     uint64 // bytes
	MaxRingSize uint32 // entries of each ring
	Devices     []Device
}

// Device is a device of the allocation. Its place in Welcome.Devices is how the client names it.
type Device struct {
	Netdev Name
	Queue  uint32
	NUMA   int32  // NUMA node, -1 when unknown
	MTU    uint32 // bytes
	Flags  DeviceFlags
	Epoch  uint64 // grows with each lease of the device; 0 without a lease
}

// DeviceFlags says how a device stands.
type DeviceFlags uint32

// The device flags.
const (
	DeviceLeased      DeviceFlags = 1 << iota // leased to the client's network namespace: Open can succeed
	DeviceOpen                                // some connection has it open
	DeviceMultiBuffer                         // packets may span frames
)

// UMEM registers the client's packet memory; a memfd comes with it.
type UMEM struct {
	Length    uint64 // bytes; the memfd's size
	FrameSize uint32 // bytes
	Headroom  uint32 // bytes
	Flags     UMEMFlags
	Reserved  uint32 // 0
}

// UMEMFlags are the client's wishes for a UMEM.
type UMEMFlags uint32

// The UMEM flags. Without the last two the agent takes zero-copy when all devices of the pod have it.
const (
	UMEMUnaligned UMEMFlags = 1 << iota
	UMEMZeroCopyOff
	UMEMZeroCopyRequire

	umemFlagsKnown = UMEMUnaligned | UMEMZeroCopyOff | UMEMZeroCopyRequire
)

// UMEMOK answers UMEM.
type UMEMOK struct {
	ZeroCopy uint32 // 1: the UMEM's sockets are zero-copy
	Reserved uint32 // 0
}

// Open asks for the socket of a device.
type Open struct {
	Device     uint32 // index in Welcome.Devices
	Fill       uint32 // entries, as the following
	Completion uint32
	RX         uint32
	TX         uint32
	Flags      OpenFlags
}

// OpenFlags are the client's wishes for a socket.
type OpenFlags uint32

// OpenNoBusyPoll leaves the busy-poll options unset although the pool has them.
const (
	OpenNoBusyPoll OpenFlags = 1 << iota

	openFlagsKnown = OpenNoBusyPoll
)

// Socket says what was negotiated for a socket.
type Socket struct {
	Device          uint32
	Fill            uint32
	Completion      uint32
	RX              uint32
	TX              uint32
	Flags           SocketFlags
	NAPI            uint32 // SO_INCOMING_NAPI_ID right after the bind; 0: none seen
	QueueNAPI       uint32 // the NAPI that the kernel links the rx queue to; 0: none
	BusyPollBudget  uint32 // packets
	BusyPollTimeout uint32 // µs
	DeferHardIRQs   uint32 // as read back from the queue's NAPI or the device
	Reserved        uint32 // 0; all 64-bit fields are at a multiple of 8
	GROFlushTimeout uint64 // ns, as read back
	Cookie          uint64 // SO_COOKIE
	Epoch           uint64 // of the lease
}

// SocketFlags are a socket's negotiated modes.
type SocketFlags uint32

// The socket flags.
const (
	SocketZeroCopy     SocketFlags = 1 << iota
	SocketNeedWakeup               // bound with XDP_USE_NEED_WAKEUP
	SocketMultiBuffer              // bound with XDP_USE_SG
	SocketBusyPoll                 // the kernel took the busy-poll options
	SocketDeferral                 // interrupt deferral was read back as the pool wants it
	SocketNAPIKnown                // the kernel tells which NAPI a queue has, so that QueueNAPI 0 means none
	SocketSeparateNAPI             // rx and tx of the queue have NAPIs of their own
)

// Opened answers Open; the socket comes with it.
type Opened struct {
	Socket
	Text string // why busy polling cannot work; empty where it can
}

// Resume hands back a socket after the agent was restarted; the socket comes with it.
type Resume struct {
	Device   uint32
	Reserved uint32 // 0
}

// Resumed answers Resume.
type Resumed struct {
	Device   uint32
	Reserved uint32 // 0
	Epoch    uint64
}

// Join has this connection use the UMEM of a socket that the pod got on another one; that socket comes with it.
type Join struct {
	Reserved uint64 // 0
}

// Joined answers Join.
type Joined struct {
	ZeroCopy uint32
	Reserved uint32
}

// Close has the agent drop its descriptor of a device's socket.
type Close struct {
	Device   uint32
	Reserved uint32
}

// Closed answers Close.
type Closed struct {
	Device   uint32
	Reserved uint32
}

// Kick asks for a second socket on the queue of a zero-copy device that this connection has open. It is on the same
// UMEM and never busy-polls, so its sendto has the driver send what is on the first socket's tx ring. A busy-polling
// socket's own sendto only polls its rx NAPI, which does not send where tx has a NAPI of its own.
type Kick struct {
	Device   uint32
	Reserved uint32
}

// Kicked answers Kick; the socket comes with it.
type Kicked struct {
	Device uint32
	TX     uint32 // entries of its tx ring, which is not meant to be used
}

// Tuning asks how the queue of a device that this connection has open stands now: the link may have been down since it
// was opened, or the driver have reset it, or someone else have changed its settings.
type Tuning struct {
	Device   uint32
	Reserved uint32
}

// Tuned answers Tuning.
type Tuned struct {
	Device          uint32
	Flags           SocketFlags // SocketDeferral, SocketNAPIKnown and SocketSeparateNAPI only
	QueueNAPI       uint32      // the NAPI that the kernel links the rx queue to; 0: none
	DeferHardIRQs   uint32      // as read from the queue's NAPI or the device
	GROFlushTimeout uint64      // ns, as read
}

// Code says what kind of error it is.
type Code uint32

// The error codes.
const (
	CodeMalformed   Code = 1  // the message breaks the protocol; the agent closes the connection
	CodeVersion     Code = 2  // no common version; the agent closes the connection
	CodeNotLeased   Code = 3  // no lease for this network namespace: before ADD, after DEL, or another pod
	CodeState       Code = 4  // not as things stand: for example a second UMEM, or the NIC has lost the XDP program
	CodeLimit       Code = 5  // above a limit of the pool
	CodeInvalid     Code = 6  // a ring size, the memfd or its description is not acceptable
	CodeBusy        Code = 7  // another client or process holds the queue
	CodeUnsupported Code = 8  // kernel, driver or pool cannot
	CodeNoDevice    Code = 9  // no such device, or it is gone
	CodeNotYours    Code = 10 // the socket is not the one that the agent made for this lease
	CodeInternal    Code = 11 // the agent failed
	CodeEnded       Code = 12 // the lease ended; the agent closes the connection
	CodeNoUMEM      Code = 13 // the connection has no UMEM, or no socket on it is open any more: UMEM or JOIN, then again
)

// String returns the code in one word, as metrics have it.
func (c Code) String() string {
	names := [...]string{
		CodeMalformed: "malformed", CodeVersion: "version", CodeNotLeased: "not_leased", CodeState: "state",
		CodeLimit: "limit", CodeInvalid: "invalid", CodeBusy: "busy", CodeUnsupported: "unsupported",
		CodeNoDevice: "no_device", CodeNotYours: "not_yours", CodeInternal: "internal", CodeEnded: "ended",
		CodeNoUMEM: "no_umem",
	}
	if c == 0 || uint64(c) >= uint64(len(names)) {
		return fmt.Sprintf("code_%d", uint32(c))
	}
	return names[c]
}

// Error answers any request that fails. It is also an error value.
type Error struct {
	Code Code
	Text string
}

func (e *Error) Error() string { return e.Text }

// Errorf makes an Error.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{code, fmt.Sprintf(format, args...)}
}

// Type methods.
func (*Hello) Type() Type   { return TypeHello }
func (*Welcome) Type() Type { return TypeWelcome }
func (*UMEM) Type() Type    { return TypeUMEM }
func (*UMEMOK) Type() Type  { return TypeUMEMOK }
func (*Open) Type() Type    { return TypeOpen }
func (*Opened) Type() Type  { return TypeOpened }
func (*Resume) Type() Type  { return TypeResume }
func (*Resumed) Type() Type { return TypeResumed }
func (*Join) Type() Type    { return TypeJoin }
func (*Joined) Type() Type  { return TypeJoined }
func (*Close) Type() Type   { return TypeClose }
func (*Closed) Type() Type  { return TypeClosed }
func (*Kick) Type() Type    { return TypeKick }
func (*Kicked) Type() Type  { return TypeKicked }
func (*Tuning) Type() Type  { return TypeTuning }
func (*Tuned) Type() Type   { return TypeTuned }
func (*Error) Type() Type   { return TypeError }

func (m *Hello) append(b []byte) ([]byte, error)   { return appendFixed(b, m) }
func (m *UMEM) append(b []byte) ([]byte, error)    { return appendFixed(b, m) }
func (m *UMEMOK) append(b []byte) ([]byte, error)  { return appendFixed(b, m) }
func (m *Open) append(b []byte) ([]byte, error)    { return appendFixed(b, m) }
func (m *Resume) append(b []byte) ([]byte, error)  { return appendFixed(b, m) }
func (m *Resumed) append(b []byte) ([]byte, error) { return appendFixed(b, m) }
func (m *Join) append(b []byte) ([]byte, error)    { return appendFixed(b, m) }
func (m *Joined) append(b []byte) ([]byte, error)  { return appendFixed(b, m) }
func (m *Close) append(b []byte) ([]byte, error)   { return appendFixed(b, m) }
func (m *Closed) append(b []byte) ([]byte, error)  { return appendFixed(b, m) }
func (m *Kick) append(b []byte) ([]byte, error)    { return appendFixed(b, m) }
func (m *Kicked) append(b []byte) ([]byte, error)  { return appendFixed(b, m) }
func (m *Tuning) append(b []byte) ([]byte, error)  { return appendFixed(b, m) }
func (m *Tuned) append(b []byte) ([]byte, error)   { return appendFixed(b, m) }

func (m *Hello) decode(b []byte) error {
	if err := decodeFixed(b, m); err != nil {
		return err
	}
	if m.MinVersion > m.MaxVersion {
		return fmt.Errorf("versions %d to %d are no range", m.MinVersion, m.MaxVersion)
	}
	return nil
}

func (m *UMEM) decode(b []byte) error {
	if err := decodeFixed(b, m); err != nil {
		return err
	}
	if m.Flags&^umemFlagsKnown != 0 {
		return fmt.Errorf("unknown flags %#x", uint32(m.Flags&^umemFlagsKnown))
	}
	if m.Flags&UMEMZeroCopyOff != 0 && m.Flags&UMEMZeroCopyRequire != 0 {
		return fmt.Errorf("zero-copy cannot be both off and required")
	}
	return checkReserved(uint64(m.Reserved))
}

func (m *Open) decode(b []byte) error {
	if err := decodeFixed(b, m); err != nil {
		return err
	}
	if m.Flags&^openFlagsKnown != 0 {
		return fmt.Errorf("unknown flags %#x", uint32(m.Flags&^openFlagsKnown))
	}
	return nil
}

func (m *Resume) decode(b []byte) error {
	if err := decodeFixed(b, m); err != nil {
		return err
	}
	return checkReserved(uint64(m.Reserved))
}

func (m *Join) decode(b []byte) error {
	if err := decodeFixed(b, m); err != nil {
		return err
	}
	return checkReserved(m.Reserved)
}

func (m *Close) decode(b []byte) error {
	if err := decodeFixed(b, m); err != nil {
		return err
	}
	return checkReserved(uint64(m.Reserved))
}

func (m *Kick) decode(b []byte) error {
	if err := decodeFixed(b, m); err != nil {
		return err
	}
	return checkReserved(uint64(m.Reserved))
}

func (m *Tuning) decode(b []byte) error {
	if err := decodeFixed(b, m); err != nil {
		return err
	}
	return checkReserved(uint64(m.Reserved))
}

// checkReserved is for requests: a later version may give what is reserved a meaning, which must not be passed over. In
// answers it is not looked at.
func checkReserved(v uint64) error {
	if v != 0 {
		return fmt.Errorf("reserved is %#x, must be 0", v)
	}
	return nil
}

func (m *UMEMOK) decode(b []byte) error  { return decodeFixed(b, m) }
func (m *Resumed) decode(b []byte) error { return decodeFixed(b, m) }
func (m *Joined) decode(b []byte) error  { return decodeFixed(b, m) }
func (m *Closed) decode(b []byte) error  { return decodeFixed(b, m) }
func (m *Kicked) decode(b []byte) error  { return decodeFixed(b, m) }
func (m *Tuned) decode(b []byte) error   { return decodeFixed(b, m) }

func (m *Opened) append(b []byte) ([]byte, error) {
	b, err := appendFixed(b, &m.Socket)
	return appendText(b, m.Text), err
}

func (m *Opened) decode(b []byte) (err error) {
	n := binary.Size(m.Socket)
	if len(b) < n {
		return fmt.Errorf("payload has %d bytes, want at least %d", len(b), n)
	}
	if err := decodeFixed(b[:n], &m.Socket); err != nil {
		return err
	}
	m.Text, err = decodeText(b[n:])
	return err
}

func (e *Error) append(b []byte) ([]byte, error) {
	return appendText(order.AppendUint32(b, uint32(e.Code)), e.Text), nil
}

func (e *Error) decode(b []byte) (err error) {
	if len(b) < 4 {
		return fmt.Errorf("payload has %d bytes, want at least 6", len(b))
	}
	e.Code = Code(order.Uint32(b))
	e.Text, err = decodeText(b[4:])
	return err
}

type welcomeFixed struct {
	Version     uint16
	DeviceCount uint16
	MaxRingSize uint32
	MaxUMEM     uint64
	Pool        [64]byte
}

func (m *Welcome) append(b []byte) ([]byte, error) {
	f := welcomeFixed{
		Version: m.Version, DeviceCount: uint16(len(m.Devices)), MaxRingSize: m.MaxRingSize, MaxUMEM: m.MaxUMEM,
	}
	if len(m.Devices) > MaxDevices {
		return nil, fmt.Errorf("%d devices are more than %d", len(m.Devices), MaxDevices)
	}
	if copy(f.Pool[:len(f.Pool)-1], m.Pool) < len(m.Pool) {
		return nil, fmt.Errorf("pool name %q has more than %d bytes", m.Pool, len(f.Pool)-1)
	}
	b, err := appendFixed(b, &f)
	if err != nil {
		return nil, err
	}
	return appendFixed(b, m.Devices)
}

func (m *Welcome) decode(b []byte) error {
	var f welcomeFixed
	n := binary.Size(f)
	if len(b) < n {
		return fmt.Errorf("payload has %d bytes, want at least %d", len(b), n)
	}
	if err := decodeFixed(b[:n], &f); err != nil {
		return err
	}
	if f.DeviceCount > MaxDevices {
		return fmt.Errorf("%d devices are more than %d", f.DeviceCount, MaxDevices)
	}
	m.Version, m.MaxRingSize, m.MaxUMEM = f.Version, f.MaxRingSize, f.MaxUMEM
	m.Pool = cString(f.Pool[:])
	if rest := f.Pool[len(m.Pool):]; len(rest) == 0 || len(bytes.Trim(rest, "\x00")) > 0 {
		return fmt.Errorf("pool name %q is not padded with zero bytes", f.Pool[:])
	}
	m.Devices = make([]Device, f.DeviceCount)
	return decodeFixed(b[n:], m.Devices)
}
