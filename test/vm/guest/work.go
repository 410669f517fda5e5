package main

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/afxdp-project/afxdp/test/vm/report"
)

// work adds up the packets that the poll functions of all NAPIs took in, by who called them. It believes that there is one
// CPU.
type work struct {
	sums  *ebpf.Map
	progs []*ebpf.Program
	links []link.Link
}

// Where the sums are in the map's only value.
const (
	workInSoftIRQ = 8 * iota // not 0 while a softirq runs
	workSoftIRQ
	workLoop
	workOther
	workSize
)

// countWork starts to add up. loop is the id of the loop's thread.
func countWork(loop int) (_ *work, err error) {
	w := &work{}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("count what NAPIs poll: %w", err), w.close())
		}
	}()
	if w.sums, err = ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: workSize, MaxEntries: 1}); err != nil {
		return nil, err
	}
	for _, p := range []struct {
		tracepoint string
		code       asm.Instructions
	}{
		{"napi_poll", w.polled(loop)}, {"softirq_entry", w.mark(1)}, {"softirq_exit", w.mark(0)},
	} {
		prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.RawTracepoint, License: "GPL", Instructions: p.code})
		if err != nil {
			return nil, err
		}
		w.progs = append(w.progs, prog)
		l, err := link.AttachRawTracepoint(link.RawTracepointOptions{Name: p.tracepoint, Program: prog})
		if err != nil {
			return nil, err
		}
		w.links = append(w.links, l)
	}
	return w, nil
}

// polled is for napi_poll(napi, work, budget); each argument has 8 bytes.
func (w *work) polled(loop int) asm.Instructions {
	add := func(offset uint32) asm.Instructions {
		return asm.Instructions{
			asm.LoadMapValue(asm.R1, w.sums.FD(), offset),
			asm.StoreXAdd(asm.R1, asm.R6, asm.DWord),
			asm.Mov.Imm(asm.R0, 0),
			asm.Return(),
		}
	}
	code := asm.Instructions{
		asm.LoadMem(asm.R6, asm.R1, 8, asm.DWord), // work
		asm.LoadMapValue(asm.R1, w.sums.FD(), workInSoftIRQ),
		asm.LoadMem(asm.R1, asm.R1, 0, asm.DWord),
		asm.JNE.Imm(asm.R1, 0, "softirq"),
		asm.FnGetCurrentPidTgid.Call(),
		asm.JEq.Imm32(asm.R0, int32(loop), "loop"), // the lower half is the thread's id
	}
	code = append(code, add(workOther)...)
	softirq, own := add(workSoftIRQ), add(workLoop)
	softirq[0], own[0] = softirq[0].WithSymbol("softirq"), own[0].WithSymbol("loop")
	return append(append(code, softirq...), own...)
}

// mark notes whether a softirq runs.
func (w *work) mark(value int32) asm.Instructions {
	return asm.Instructions{
		asm.LoadMapValue(asm.R1, w.sums.FD(), workInSoftIRQ),
		asm.Mov.Imm(asm.R2, value),
		asm.StoreMem(asm.R1, 0, asm.R2, asm.DWord),
		asm.Mov.Imm(asm.R0, 0),
		asm.Return(),
	}
}

// stop ends it and returns the sums.
func (w *work) stop() (*report.Polls, error) {
	var sums [workSize / 8]uint64
	err := w.sums.Lookup(uint32(0), &sums)
	p := &report.Polls{SoftIRQ: sums[workSoftIRQ/8], Loop: sums[workLoop/8], Others: sums[workOther/8]}
	return p, errors.Join(err, w.close())
}

func (w *work) close() error {
	var errs []error
	for _, l := range w.links {
		errs = append(errs, l.Close())
	}
	for _, p := range w.progs {
		errs = append(errs, p.Close())
	}
	if w.sums != nil {
		errs = append(errs, w.sums.Close())
	}
	return errors.Join(errs...)
}
