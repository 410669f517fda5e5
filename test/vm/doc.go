// Package vm tests on kernels and drivers that this machine does not run: its tests boot packaged kernels under QEMU,
// with multi-queue NICs, and hold what the guest finds out against a table (testdata/matrix.json). They have the build
// tag vm; "make test-vm" gets kernels and QEMU first. docs/testing-vm.md describes it.
package vm
