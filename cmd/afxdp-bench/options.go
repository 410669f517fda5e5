package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/afxdp-project/afxdp/pkg/xsk"
)

type mode string

const (
	rxDrop mode = "rxdrop"
	txOnly mode = "txonly"
	l2fwd  mode = "l2fwd"
)

type options struct {
	mode     mode
	path     string
	duration time.Duration
	packets  uint64
	batch    int
	threads  int

	zeroCopy   xsk.ZeroCopy
	noBusyPoll bool
	rings      xsk.RingSizes
	frames     uint32
	frameSize  uint32
	headroom   uint32

	packetSize     int
	source, target net.HardwareAddr
	json           bool
	progress       time.Duration
	version        bool
}

const (
	minPacket = 60    // an Ethernet frame without its checksum
	maxPacket = 65535 // bounded further by the frame size and the MTU
)

const usage = `afxdp-bench measures AF_XDP in a pod, on every queue that the pod was given, on one shared UMEM.

  afxdp-bench rxdrop [flags]   receive and drop
  afxdp-bench txonly [flags]   send UDP packets of 256 flows as fast as it goes
  afxdp-bench l2fwd  [flags]   receive, swap the MAC addresses, send back on the same queue

It needs a container that asks for a resource of the device plugin, a network that the CNI plugin has attached, and no
capability:

  resources: {limits: {afxdp.io/fast: 2}}

The device plugin then sets AFXDP_FAST to the directory where the node agent is reached. With one such variable nothing
has to be said; with several, --path chooses: afxdp-bench l2fwd --path "$AFXDP_FAST".

It runs until --duration or --packets is over or it is told to end (SIGINT, SIGTERM), and then prints what each queue
did: packets, rates in millions a second (Mpps), and what was lost and why, as the kernel counts it:

  rx_ring_full          packets that came while all of the rx ring was full: this program was too slow
  rx_dropped            packets for which there was no free frame, or that were larger than one
  rx_fill_ring_empty    how often a packet found no free frame
  tx_invalid            packets that the kernel refused to send

With rx_ring_full, let it have a core to itself; with rx_fill_ring_empty, raise --frames and --fill-size. A restart of
the node agent does not stop it: it connects again and resumes (the count is shown). Busy polling is reported as active
only when it really is, else with the reason.

Exit status:
  0  it ran to its end
  2  the command line is wrong
  3  the queues could not be had: no agent, no lease, no memory
  4  the queues were lost while it ran: lease ended or device gone; the summary is printed all the same

Flags:
`

// parseOptions returns pflag.ErrHelp when help was asked for, and then printed to help.
func parseOptions(args []string, help io.Writer) (*options, error) {
	o := &options{}
	fs := pflag.NewFlagSet("afxdp-bench", pflag.ContinueOnError)
	fs.SortFlags = false
	fs.SetOutput(io.Discard)
	fs.Usage = func() { _, _ = fmt.Fprint(help, usage, fs.FlagUsagesWrapped(110)) }

	fs.StringVar(&o.path, "path", "", "directory of the allocation (default: the one that an AFXDP_* variable names)")
	fs.DurationVarP(&o.duration, "duration", "d", 0, "end after this time; 0: run until told to end")
	fs.Uint64VarP(&o.packets, "packets", "n", 0, "end when so many packets were received (txonly: sent); 0: no limit")
	fs.IntVarP(&o.batch, "batch", "b", 64, "descriptors worked on at once, 32 or more")
	fs.IntVar(&o.threads, "threads", 0, "threads that share the queues; 0: one for each queue, but not more than CPUs")
	zeroCopy := fs.String("zero-copy", "auto", "auto, require or off")
	fs.BoolVar(&o.noBusyPoll, "no-busy-poll", false, "leave busy polling off although the pool has it on")
	fs.Uint32Var(&o.frames, "frames", 0, "frames for each queue; 0: as many as its fill and tx ring hold")
	fs.Uint32Var(&o.frameSize, "frame-size", 0, "bytes of a frame, 2048 or 4096; 0: 4096")
	fs.Uint32Var(&o.headroom, "headroom", 0, "bytes kept free before a received packet")
	ring := fs.Uint32("ring-size", 0, "entries of each ring, a power of two; 0: 2048 or the pool's limit")
	fs.Uint32Var(&o.rings.RX, "rx-size", 0, "entries of the rx ring; 0: --ring-size")
	fs.Uint32Var(&o.rings.TX, "tx-size", 0, "entries of the tx ring; 0: --ring-size")
	fs.Uint32Var(&o.rings.Fill, "fill-size", 0, "entries of the fill ring; 0: --ring-size")
	fs.Uint32Var(&o.rings.Completion, "completion-size", 0, "entries of the completion ring; 0: --ring-size")
	fs.IntVar(&o.packetSize, "packet-size", minPacket, "txonly: bytes of a packet, without the Ethernet checksum")
	source := fs.String("source-mac", "02:00:00:00:00:01", "txonly: source address")
	target := fs.String("target-mac", "02:00:00:00:00:02", "txonly: destination address")
	fs.BoolVar(&o.json, "json", false, "print the summary as one JSON object")
	fs.DurationVar(&o.progress, "progress", 0,
		"with --json: print the summary so far at this interval too, an object a line, the first when packets can come")

	fs.BoolVar(&o.version, "version", false, "print the version and end")

	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	if o.version {
		return o, nil
	}
	var err error
	if o.mode, err = parseMode(fs.Args()); err != nil {
		return nil, err
	}
	if o.zeroCopy, err = parseZeroCopy(*zeroCopy); err != nil {
		return nil, err
	}
	for _, size := range []*uint32{&o.rings.RX, &o.rings.TX, &o.rings.Fill, &o.rings.Completion} {
		if *size == 0 {
			*size = *ring
		}
	}
	if o.source, err = parseMAC("source-mac", *source); err != nil {
		return nil, err
	}
	if o.target, err = parseMAC("target-mac", *target); err != nil {
		return nil, err
	}
	return o, o.validate()
}

func parseMode(args []string) (mode, error) {
	modes := []mode{rxDrop, txOnly, l2fwd}
	switch {
	case len(args) == 0:
		return "", errors.New("say what to do: rxdrop, txonly or l2fwd")
	case len(args) > 1:
		return "", fmt.Errorf("too many arguments: %s", strings.Join(args, " "))
	case !slices.Contains(modes, mode(args[0])):
		return "", fmt.Errorf("%q is none of rxdrop, txonly, l2fwd", args[0])
	}
	return mode(args[0]), nil
}

func parseZeroCopy(s string) (xsk.ZeroCopy, error) {
	for _, z := range []xsk.ZeroCopy{xsk.ZeroCopyAuto, xsk.ZeroCopyRequire, xsk.ZeroCopyOff} {
		if s == z.String() {
			return z, nil
		}
	}
	return 0, fmt.Errorf("--zero-copy: %q is none of auto, require, off", s)
}

func parseMAC(flag, s string) (net.HardwareAddr, error) {
	a, err := net.ParseMAC(s)
	if err != nil || len(a) != 6 {
		return nil, fmt.Errorf("--%s: %q is no Ethernet address such as 02:00:00:00:00:01", flag, s)
	}
	return a, nil
}

func (o *options) validate() error {
	switch {
	case o.duration < 0:
		return fmt.Errorf("--duration: %v is negative", o.duration)
	case o.progress < 0:
		return fmt.Errorf("--progress: %v is negative", o.progress)
	case o.progress > 0 && !o.json:
		return errors.New("--progress: it needs --json")
	case o.batch < 32 || o.batch > xsk.MaxRingSize:
		return fmt.Errorf("--batch: %d is out of range: 32 to %d", o.batch, xsk.MaxRingSize)
	case o.threads < 0:
		return fmt.Errorf("--threads: %d is negative", o.threads)
	case o.packetSize < minPacket || o.packetSize > maxPacket:
		return fmt.Errorf("--packet-size: %d is out of range: %d to %d", o.packetSize, minPacket, maxPacket)
	case o.frames > math.MaxInt32:
		return fmt.Errorf("--frames: %d is out of range", o.frames)
	}
	// What is 0 gets its default later, when the pool's limits are known.
	umem := xsk.UMEMConfig{Frames: max(1, o.frames), FrameSize: o.frameSize, Headroom: o.headroom}.WithDefaults()
	if err := umem.Validate(); err != nil {
		return err
	}
	if o.mode == txOnly && o.packetSize > int(umem.FrameSize) {
		return fmt.Errorf("--packet-size: %d does not fit into a frame of %d", o.packetSize, umem.FrameSize)
	}
	rings := o.rings
	for _, size := range []*uint32{&rings.RX, &rings.TX, &rings.Fill, &rings.Completion} {
		*size = max(1, *size)
	}
	return rings.Validate()
}
