package main

import (
	"bytes"
	"debug/elf"
	"fmt"
)

// checkStatic refuses a program that needs a loader: an image from scratch has none, and the kernel's "no such file or
// directory" would name the program.
func checkStatic(name string, data []byte) error {
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return fmt.Errorf("%s is no program: %w", name, err)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return fmt.Errorf("%s is dynamically linked: build it with CGO_ENABLED=0", name)
		}
	}
	return nil
}
