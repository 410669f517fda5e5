// Package xdpprog attaches the XDP program that hands packets to AF_XDP sockets, and keeps it and its maps pinned so
// that both outlive the process.
package xdpprog

//go:generate bpf2go -tags linux redirect redirect.c -- -O2 -g -Wall -Werror
