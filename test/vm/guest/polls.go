package main

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// polls counts the calls of NAPIs' poll functions, of all devices.
type polls struct {
	counts *ebpf.Map
	progs  []*ebpf.Program
	links  []link.Link
}

// pollCounts are what the programs add up. Times are in nanoseconds.
type pollCounts struct {
	Polls, Short  uint64
	Entered       uint64 // when the softirq that runs was entered
	SoftIRQ       uint64 // in softirqs that receive
	OnApplication uint64 // that part of them that interrupted the application
}

// countPolls starts to count. It takes about 50 instructions a poll.
func countPolls() (_ *polls, err error) {
	p := &polls{}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("count NAPI polls: %w", err), p.close())
		}
	}()
	if p.counts, err = ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 40, MaxEntries: 1}); err != nil {
		return nil, err
	}
	for name, code := range map[string]asm.Instructions{
		"napi_poll": p.countPoll(), "softirq_entry": p.softirqEntry(), "softirq_exit": p.softirqExit(unix.Gettid()),
	} {
		prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.RawTracepoint, License: "GPL", Instructions: code})
		if err != nil {
			return nil, err
		}
		p.progs = append(p.progs, prog)
		l, err := link.AttachRawTracepoint(link.RawTracepointOptions{Name: name, Program: prog})
		if err != nil {
			return nil, err
		}
		p.links = append(p.links, l)
	}
	return p, nil
}

// countPoll is for napi_poll(napi, work, budget); each argument has 8 bytes.
func (p *polls) countPoll() asm.Instructions {
	return asm.Instructions{
		asm.LoadMem(asm.R6, asm.R1, 8, asm.DWord),
		asm.LoadMem(asm.R7, asm.R1, 16, asm.DWord),
		asm.LoadMapValue(asm.R1, p.counts.FD(), 0),
		asm.Mov.Imm(asm.R2, 1),
		asm.StoreXAdd(asm.R1, asm.R2, asm.DWord),
		asm.JGE.Reg32(asm.R6, asm.R7, "full"),
		asm.LoadMapValue(asm.R1, p.counts.FD(), 8),
		asm.StoreXAdd(asm.R1, asm.R2, asm.DWord),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("full"),
		asm.Return(),
	}
}

const softirqRX = 3 // NET_RX_SOFTIRQ

// softirqEntry is for softirq_entry(vector).
func (p *polls) softirqEntry() asm.Instructions {
	return asm.Instructions{
		asm.LoadMem(asm.R6, asm.R1, 0, asm.DWord),
		asm.JNE.Imm32(asm.R6, softirqRX, "end"),
		asm.FnKtimeGetNs.Call(),
		asm.LoadMapValue(asm.R1, p.counts.FD(), 16),
		asm.StoreMem(asm.R1, 0, asm.R0, asm.DWord),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("end"),
		asm.Return(),
	}
}

// softirqExit is for softirq_exit(vector).
func (p *polls) softirqExit(application int) asm.Instructions {
	return asm.Instructions{
		asm.LoadMem(asm.R6, asm.R1, 0, asm.DWord),
		asm.JNE.Imm32(asm.R6, softirqRX, "end"),
		asm.FnKtimeGetNs.Call(),
		asm.LoadMapValue(asm.R1, p.counts.FD(), 16),
		asm.LoadMem(asm.R7, asm.R1, 0, asm.DWord),
		asm.Mov.Reg(asm.R8, asm.R0),
		asm.Sub.Reg(asm.R8, asm.R7),
		asm.LoadMapValue(asm.R1, p.counts.FD(), 24),
		asm.StoreXAdd(asm.R1, asm.R8, asm.DWord),
		asm.FnGetCurrentPidTgid.Call(),
		asm.JNE.Imm32(asm.R0, int32(application), "end"),
		asm.LoadMapValue(asm.R1, p.counts.FD(), 32),
		asm.StoreXAdd(asm.R1, asm.R8, asm.DWord),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("end"),
		asm.Return(),
	}
}

func (p *polls) read() (c pollCounts, err error) { return c, p.counts.Lookup(uint32(0), &c) }

func (p *polls) close() error {
	var errs []error
	for _, l := range p.links {
		errs = append(errs, l.Close())
	}
	for _, prog := range p.progs {
		errs = append(errs, prog.Close())
	}
	if p.counts != nil {
		errs = append(errs, p.counts.Close())
	}
	return errors.Join(errs...)
}
