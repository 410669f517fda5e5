package report

// Bench is what the guest measures instead of the matrix.
type Bench struct {
	Cases []BenchCase `json:"cases"`
	Runs  int         `json:"runs"` // rounds: the cases are measured in turn, and again
	// CPUs is how many the guest has. If there are more than one, it first finds out how many times as much as one they do,
	// and only goes on where that is AtOnce or more.
	CPUs   int     `json:"cpus"`
	AtOnce float64 `json:"atOnce,omitempty"`
}

// BenchCase is a way to receive.
type BenchCase struct {
	Name   string `json:"name"`
	Budget int    `json:"budget"` // packets; 0: no busy polling
	// DeferHardIRQs and GROFlushTimeoutUs defer the queue's interrupts; only with busy polling.
	DeferHardIRQs     uint32 `json:"deferHardIRQs"`
	GROFlushTimeoutUs int    `json:"groFlushTimeoutUs"`
	Threaded          bool   `json:"threaded"`
	// Ring is the size of the rx ring, in descriptors.
	Ring int `json:"ring"`
	// FewFrames has the application own no more frames than the rx ring takes, so that there none can be dropped.
	FewFrames bool `json:"fewFrames,omitempty"`
	// Sleeps has the application wait in poll(2) when it finds nothing, instead of looking again.
	Sleeps bool `json:"sleeps,omitempty"`
	// IRQCPU is the CPU that the queue's interrupt goes to. The application runs on CPU 0.
	IRQCPU int `json:"irqCPU,omitempty"`
	// Weight is that of the application's control group; 0: it is in the root group.
	Weight int `json:"weight,omitempty"`
	// Aside has the case take part in every other round only, the first among them.
	Aside bool `json:"aside,omitempty"`
	// Latency has the case measured for latency, too.
	Latency bool `json:"latency,omitempty"`
}

// RunsOf returns how many runs the case has in so many rounds.
func (c *BenchCase) RunsOf(rounds int) int {
	if c.Aside {
		return (rounds + 1) / 2
	}
	return rounds
}

// BenchRun is what one run of a case came to. Counts are those of the measured time, which is the guest's.
type BenchRun struct {
	Case    string `json:"case"`
	Kernel  string `json:"kernel"`
	Driver  string `json:"driver"`
	Date    string `json:"date"`
	Refusal string `json:"refusal,omitempty"`
	Latency bool   `json:"latency,omitempty"` // the host has measured the latency

	BusyPoll   string  `json:"busyPoll"` // whether it really polls, in words
	Seconds    float64 `json:"seconds"`
	Offered    uint64  `json:"offered"`        // by the host, as the frames' numbers tell
	DriverRX   uint64  `json:"driverReceived"` // by the driver
	Received   uint64  `json:"received"`       // by the application
	Interrupts uint64  `json:"interrupts"`     // of the queue
	// Polls are the calls of NAPIs' poll functions; ShortPolls those that found less than they might have taken, so
	// that for a moment the load was not held.
	Polls      uint64 `json:"polls"`
	ShortPolls uint64 `json:"shortPolls"`
	RXCalls    uint64 `json:"rxCalls"` // system calls of the loop
	Sleeps     uint64 `json:"sleeps"`
	Slices     uint64 `json:"applicationSlices"` // how often the application was given the CPU

	RingFull   uint64 `json:"rxRingFull"`    // dropped by the socket: the application was late
	Dropped    uint64 `json:"rxDropped"`     // dropped by the socket for another reason
	FillEmpty  uint64 `json:"fillRingEmpty"` // how often the driver found no frame
	DeviceDrop uint64 `json:"deviceDropped"` // by the driver, those of the socket among them

	CPU  BenchCPU  `json:"cpu"`
	Host BenchHost `json:"host"`
}

// BenchCPU is where the time of the application's CPU went, as shares of the measured time.
type BenchCPU struct {
	// SoftIRQ is the receiving softirq, wherever it ran: on the way out of an interrupt, of a system call, in ksoftirqd.
	SoftIRQ float64 `json:"softirq"`
	// Application is its thread, with its system calls and so its polls, without the softirqs that interrupted it.
	Application float64 `json:"application"`
	NAPIThread  float64 `json:"napiThread"`
}

// BenchHost is what the host counted while it sent, frames a second of its own clock, or measured.
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
