package netdev

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// CPUs is a set of CPUs in the kernel's list format, such as "0-3,8", in ascending order and without repetition, so
// that equal sets are equal strings.
type CPUs string

// maxCPU bounds CPU numbers; the kernel's own bound is 8192.
const maxCPU = 8191

// ParseCPUs reads a list such as "8,0-3".
func ParseCPUs(s string) (CPUs, error) {
	all, err := CPUs(s).numbers()
	if err != nil {
		return "", err
	}
	return makeCPUs(all), nil
}

func (c CPUs) numbers() (all []int, err error) {
	bad := fmt.Errorf("%q is no list of CPUs: want numbers and ranges such as 0-3,8", string(c))
	for part := range strings.SplitSeq(strings.TrimSpace(string(c)), ",") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		first, err := strconv.Atoi(from)
		if err != nil || first < 0 || first > maxCPU {
			return nil, bad
		}
		last, err := strconv.Atoi(to)
		if err != nil || last < first || last > maxCPU {
			return nil, bad
		}
		for cpu := first; cpu <= last; cpu++ {
			all = append(all, cpu)
		}
	}
	return all, nil
}

// UnmarshalText reads what [ParseCPUs] does.
func (c *CPUs) UnmarshalText(text []byte) error {
	v, err := ParseCPUs(string(text))
	if err != nil {
		return err
	}
	*c = v
	return nil
}

func makeCPUs(all []int) CPUs {
	slices.Sort(all)
	all = slices.Compact(all)
	var parts []string
	for i := 0; i < len(all); {
		j := i
		for j+1 < len(all) && all[j+1] == all[j]+1 {
			j++
		}
		if i == j {
			parts = append(parts, strconv.Itoa(all[i]))
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d", all[i], all[j]))
		}
		i = j + 1
	}
	return CPUs(strings.Join(parts, ","))
}

func (h *Handle) irqFile(irq int) string {
	return filepath.Join(h.irqs, strconv.Itoa(irq), "smp_affinity_list")
}

// IRQAffinity returns the CPUs that may serve an interrupt (/proc/irq/<irq>/smp_affinity_list). [ErrUnsupported] when
// there is no such interrupt or file.
func (h *Handle) IRQAffinity(irq int) (CPUs, error) {
	b, err := os.ReadFile(h.irqFile(irq))
	if errors.Is(err, os.ErrNotExist) {
		err = fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	if err != nil {
		return "", fmt.Errorf("read affinity of interrupt %d: %w", irq, err)
	}
	cpus, err := ParseCPUs(string(b))
	if err != nil {
		return "", fmt.Errorf("read affinity of interrupt %d: %w", irq, err)
	}
	return cpus, nil
}

// SetIRQAffinity has only the given CPUs serve an interrupt, and reads that back. The kernel refuses interrupts that it
// manages itself (EIO, ErrUnsupported) and sets without an online CPU (EINVAL). Needs root and a writable /proc/irq.
func (h *Handle) SetIRQAffinity(irq int, cpus CPUs) error {
	err := os.WriteFile(h.irqFile(irq), []byte(cpus), 0)
	switch {
	case errors.Is(err, unix.EIO):
		err = fmt.Errorf("%w: the kernel manages this interrupt itself: %w", ErrUnsupported, err)
	case errors.Is(err, unix.EINVAL):
		err = fmt.Errorf("%w (none of these CPUs is online?)", err)
	case errors.Is(err, os.ErrNotExist):
		err = fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	if err == nil {
		var now CPUs
		if now, err = h.IRQAffinity(irq); err == nil && now != cpus {
			err = fmt.Errorf("the kernel shows %s afterwards", now)
		}
	}
	if err != nil {
		return fmt.Errorf("set affinity of interrupt %d to %s: %w", irq, cpus, err)
	}
	return nil
}
