package report

// Bench is what the guest measures instead of the matrix.
type Bench struct {
	Cases []BenchCase `json:"cases"`
	Runs  int         `json:"runs"` // of each case, interleaved
	// Overload is how many times what busy polling takes is offered.
	Overload int `json:"overload"`
	// Work is how often the application adds up each frame.
	Work int `json:"work"`
}

// BenchCase is a way to receive.
type BenchCase struct {
	Name   string `json:"name"`
	Budget int    `json:"budget"` // packets; 0: no busy polling
	// DeferHardIRQs and GROFlushTimeoutUs defer the queue's interrupts; only with busy polling.
	DeferHardIRQs     uint32 `json:"deferHardIRQs"`
	GROFlushTimeoutUs int    `json:"groFlushTimeoutUs"`
	Threaded          bool   `json:"threaded"`
	Copy              bool   `json:"copy,omitempty"`
	// Weight is that of the application's control group; 0: it is in the root group.
	Weight int `json:"weight,omitempty"`
	// Latency has the case measured for latency, too.
	Latency bool `json:"latency"`
}

// Flood asks the host to send until Quiet: Times as many frames as the emulator took at its best in the floods that were
// to find out, of which this may be one.
type Flood struct {
	Times    int  `json:"times"`
	Capacity bool `json:"capacity,omitempty"`
	// Scale changes the rate of the flood that is on: the guest's clock is not the host's.
	Scale float64 `json:"scale,omitempty"`
}

// BenchRun is what one run of a case came to. Counts are those of the measured time.
type BenchRun struct {
	Case    string `json:"case"`
	Release string `json:"release"` // of the kernel
	Refusal string `json:"refusal,omitempty"`
	// Capacity says that the run was to find out what to offer.
	Capacity bool `json:"capacity,omitempty"`
	Latency  bool `json:"latency,omitempty"` // the host has measured the latency

	ZeroCopy   bool    `json:"zeroCopy"`
	BusyPoll   string  `json:"busyPoll"` // whether it really polls, in words
	Seconds    float64 `json:"seconds"`
	Offered    uint64  `json:"offered"`  // by the host, as the frames' numbers tell
	Received   uint64  `json:"received"` // by the application
	Interrupts uint64  `json:"interrupts"`
	RXCalls    uint64  `json:"rxCalls"` // system calls of the loop
	Sleeps     uint64  `json:"sleeps"`

	RingFull   uint64 `json:"rxRingFull"`    // dropped by the socket: the application was late
	Dropped    uint64 `json:"rxDropped"`     // dropped by the socket for another reason
	FillEmpty  uint64 `json:"fillRingEmpty"` // how often the driver found no frame
	DeviceDrop uint64 `json:"deviceDropped"` // by the driver
	// Polled and Squeezed are the softirq's: packets processed, and how often it ended with work left.
	Polled   uint64 `json:"softnetProcessed"`
	Squeezed uint64 `json:"softnetSqueezed"`

	CPU BenchCPU `json:"cpu"`

	// Host is the other end's account.
	Host BenchHost `json:"host"`
}

// BenchCPU is where the time of the application's CPU went, as shares of the measured time.
type BenchCPU struct {
	// What the timer tick saw.
	User    float64 `json:"user"`
	System  float64 `json:"system"`
	SoftIRQ float64 `json:"softirq"`
	IRQ     float64 `json:"irq"`
	Idle    float64 `json:"idle"`
	// What the scheduler gave to the application's thread, to ksoftirqd and to the NAPI's own thread. Interrupts and
	// softirqs that came while one of them ran are charged to it.
	Application float64 `json:"application"`
	Ksoftirqd   float64 `json:"ksoftirqd"`
	NAPIThread  float64 `json:"napiThread"`
}

// BenchHost is what the host counted while it sent, frames a second, or measured.
type BenchHost struct {
	Seconds float64 `json:"seconds"`
	Offered float64 `json:"offeredPerSecond"`
	// Taken are those that the emulator read; TapDropped those that found its queue full.
	Taken      float64 `json:"takenPerSecond"`
	TapDropped float64 `json:"tapDroppedPerSecond"`

	// RoundTrips are the latencies, in µs.
	RoundTrips []float64 `json:"-"`
	Pings      int       `json:"pings,omitempty"`
	Lost       int       `json:"lost,omitempty"`
	MinUs      float64   `json:"minUs,omitempty"`
	AverageUs  float64   `json:"averageUs,omitempty"`
	P99Us      float64   `json:"p99Us,omitempty"`
	MaxUs      float64   `json:"maxUs,omitempty"`
}
