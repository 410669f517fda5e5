package config

import (
	"fmt"
	"net"
	"path"
	"regexp"
	"strings"
	"unicode"
)

var (
	pciAddress = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)
	pciGlob    = regexp.MustCompile(`^[0-9a-f:.*?\[\]^\\-]+$`)
)

// maxIfname is the longest interface name in bytes: IFNAMSIZ without the terminating zero.
const maxIfname = 15

// selector checks the criteria of a pool.
func (r *reader) selector(field string, s *Selector) {
	r.required(field, "give at least one of names, drivers, pci, macs, numaNodes")
	if !r.wellFormed(field) {
		return
	}
	given := false
	for _, c := range s.criteria() {
		f := field + "." + c.name
		if _, ok := r.places[f]; ok {
			given = true
		}
		seen := map[string]int{}
		for i, v := range c.values {
			f := fmt.Sprintf("%s[%d]", f, i)
			if r.hasErrors(f) {
				continue
			}
			canonical, err := s.check(c.name, i, v)
			if err != nil {
				r.report(r.at(f), f, "%v", err)
				continue
			}
			if line, twice := seen[canonical]; twice {
				r.report(r.at(f), f, "%q is listed twice, first in line %d", shorten(v), line)
				continue
			}
			seen[canonical] = r.at(f).line
		}
	}
	if !given && !r.hasErrors(field) {
		r.report(r.at(field), field, "has no criterion: give at least one of names, drivers, pci, macs, numaNodes")
	}
}

// check checks entry i of a criterion and stores the form in which it is compared.
func (s *Selector) check(criterion string, i int, v string) (canonical string, err error) {
	switch criterion {
	case "names":
		return v, checkIfname(v)
	case "drivers":
		return v, checkDriver(v)
	case "pci":
		s.PCI[i] = strings.ToLower(v)
		return s.PCI[i], checkPCI(s.PCI[i])
	case "macs":
		mac, err := net.ParseMAC(v)
		if err != nil || len(mac) != 6 {
			return "", fmt.Errorf("%q is no Ethernet address: want six bytes such as 02:00:00:00:00:10", shorten(v))
		}
		s.MACs[i] = mac.String()
		return s.MACs[i], nil
	default:
		if n := s.NUMANodes[i]; n < 0 || n > MaxNUMANode {
			return "", fmt.Errorf("%s is out of range: 0 to %d", v, MaxNUMANode)
		}
		return v, nil
	}
}

func checkIfname(s string) error {
	switch {
	case s == "":
		return fmt.Errorf("is empty: want an interface name or a glob such as \"ens*\"")
	case s == "." || s == ".." || strings.ContainsAny(s, "/:") || strings.ContainsFunc(s, unicode.IsSpace):
		return fmt.Errorf("%q is no interface name: no spaces, ':' or '/'", shorten(s))
	case !isGlob(s) && len(s) > maxIfname:
		return fmt.Errorf("%q has %d bytes: an interface name has at most %d", shorten(s), len(s), maxIfname)
	}
	return checkGlob(s)
}

func checkDriver(s string) error {
	if s == "" || isGlob(s) || strings.Contains(s, "/") || strings.ContainsFunc(s, unicode.IsSpace) {
		return fmt.Errorf("%q is no driver name: want one as ethtool -i shows it, such as ice; globs are for names and pci",
			shorten(s))
	}
	return nil
}

func checkPCI(s string) error {
	first, _, _ := strings.Cut(s, ":")
	switch {
	case !isGlob(first) && len(first) < 4:
		return fmt.Errorf("%q is no PCI address: want it with its domain, such as 0000:3b:00.0", shorten(s))
	case !isGlob(s) && !pciAddress.MatchString(s), !pciGlob.MatchString(s):
		return fmt.Errorf("%q is no PCI address: want one such as 0000:3b:00.0, or a glob such as \"0000:3b:00.*\"",
			shorten(s))
	}
	return checkGlob(s)
}

func checkGlob(s string) error {
	if _, err := path.Match(s, ""); err != nil {
		return fmt.Errorf("%q is no glob: '[' without ']', an empty range, or '\\' at the end", shorten(s))
	}
	return nil
}
