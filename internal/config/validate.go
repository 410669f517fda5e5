package config

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// dnsLabels is what Kubernetes takes as the last part of a resource name, without upper case and underscores.
var dnsLabels = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)

// maxNameLength is Kubernetes' limit for the last part of a resource name, in bytes.
const maxNameLength = 63

// validate checks the decoded values and puts addresses into the form in which they are compared.
func (r *reader) validate(cfg *Config) {
	if r.rootIsWrong {
		return
	}
	r.constant("apiVersion", cfg.APIVersion, APIVersion)
	r.constant("kind", cfg.Kind, Kind)
	r.required("pools", "list pools, or write [] for none")
	if len(cfg.Pools) > MaxPools {
		r.report(r.at("pools"), "pools", "has %d pools: at most %d", len(cfg.Pools), MaxPools)
		return
	}
	for i := range cfg.Pools {
		r.pool(poolField(i), &cfg.Pools[i])
	}
	r.collisions(cfg)
	r.overlaps(cfg)
}

func poolField(i int) string { return fmt.Sprintf("pools[%d]", i) }

// at returns where a field stands, or the nearest one around it that was given.
func (r *reader) at(field string) place {
	for {
		if p, ok := r.places[field]; ok || field == "" {
			return p
		}
		field = field[:max(strings.LastIndexByte(field, '.'), 0)]
	}
}

// wellFormed reports whether a field was given and is itself right, whatever is wrong below it.
func (r *reader) wellFormed(field string) bool {
	_, given := r.places[field]
	return given && !slices.ContainsFunc(r.errs, func(e *FieldError) bool { return e.Field == field })
}

// hasErrors reports whether a mistake of a field or of one below it is known.
func (r *reader) hasErrors(field string) bool {
	for _, e := range r.errs {
		rest, ok := strings.CutPrefix(e.Field, field)
		if ok && (rest == "" || rest[0] == '.' || rest[0] == '[') {
			return true
		}
	}
	return false
}

// required reports whether a field is there and well-formed, and the mistake when it was not given.
func (r *reader) required(field, advice string) bool {
	if _, given := r.places[field]; !given {
		r.report(r.at(field), field, "is missing: %s", advice)
		return false
	}
	return !r.hasErrors(field)
}

// constant checks a field that can have one value only.
func (r *reader) constant(field, got, want string) {
	if r.required(field, "write "+want) && got != want {
		r.report(r.at(field), field, "%q is not supported: want %s", shorten(got), want)
	}
}

func (r *reader) pool(field string, p *Pool) {
	if !r.wellFormed(field) {
		return
	}
	if f := field + ".name"; r.required(f, "it is the last part of the resource name "+ResourceDomain+"/<name>") {
		switch {
		case len(p.Name) > maxNameLength:
			r.report(r.at(f), f, "%q has %d bytes: at most %d", shorten(p.Name), len(p.Name), maxNameLength)
		case !dnsLabels.MatchString(p.Name):
			r.report(r.at(f), f, "%q is no pool name: want lower-case letters, digits, '-' and '.', "+
				"each part between dots starting and ending with a letter or digit", p.Name)
		}
	}
	r.selector(field+".nics", &p.NICs)
	r.busyPoll(field+".busyPoll", p.BusyPoll)
	r.limits(field+".limits", p.Limits)
	if p.ZeroCopy == ZeroCopyRequire && p.AllowGeneric {
		r.warn(field+".allowGeneric", "has no effect beside zeroCopy: require: zero-copy needs native XDP")
	}
}

func (r *reader) busyPoll(field string, b BusyPoll) {
	r.intRange(field+".budget", b.Budget, 0, MaxBudget, " (0 turns busy polling off)")
	r.intRange(field+".deferHardIRQs", b.DeferHardIRQs, 0, MaxDeferHardIRQs, "")
	r.durationRange(field+".timeout", b.Timeout, MaxTimeout)
	r.durationRange(field+".groFlushTimeout", b.GROFlushTimeout, MaxGROFlush)
	r.durationRange(field+".irqSuspendTimeout", b.IRQSuspendTimeout, MaxIRQSuspend)
	if f := field + ".timeout"; b.Timeout%time.Microsecond != 0 && !r.hasErrors(f) {
		r.report(r.at(f), f, "%s is not a whole number of microseconds", r.at(f).text)
	}
	if f := field + ".threadCPUs"; b.ThreadCPUs != "" && !b.Threaded && !r.hasErrors(field+".threaded") {
		r.report(r.at(f), f, "needs threaded: true beside it: without that the NAPI has no thread to pin")
	}
	if !b.Enabled() || r.hasErrors(field) {
		return
	}
	if b.Threaded {
		r.warn(field+".threaded", "beside a budget, application and kernel thread poll the same queue and take turns: "+
			"choose one, and write budget: 0 for the thread")
	}
	if b.Timeout == 0 {
		r.warn(field+".timeout", "0 turns busy polling off whatever the budget is: write budget: 0 to say so")
	}
	if b.DeferHardIRQs == 0 {
		r.warn(field+".deferHardIRQs", "0 leaves the queue's interrupt on, so busy polling has hardly any effect: "+
			"give a number such as %d", DefaultDeferHardIRQs)
	}
	if b.GROFlushTimeout == 0 {
		r.warn(field+".groFlushTimeout", "0 leaves the queue's interrupt on, so busy polling has hardly any effect: "+
			"give a time such as %s", DefaultGROFlushTimeout)
	}
}

func (r *reader) limits(field string, l Limits) {
	if f := field + ".maxUMEM"; l.MaxUMEM < MinUMEM || l.MaxUMEM > MaxUMEM {
		r.report(r.at(f), f, "%s is out of range: %s to %s", shorten(r.at(f).text), Bytes(MinUMEM), Bytes(MaxUMEM))
	}
	r.intRange(field+".maxFrames", l.MaxFrames, 1, MaxFrames, "")
	r.intRange(field+".maxConnections", l.MaxConnections, 1, MaxConnections, "")
	f := field + ".maxRingSize"
	if r.intRange(f, l.MaxRingSize, 1, MaxRingSize, "") && l.MaxRingSize&(l.MaxRingSize-1) != 0 {
		below := 1
		for below*2 < l.MaxRingSize {
			below *= 2
		}
		r.report(r.at(f), f, "%d is not a power of two: %d or %d", l.MaxRingSize, below, 2*below)
	}
}

// intRange reports whether a number is in its bounds, and the mistake when it is not.
func (r *reader) intRange(field string, v, low, high int, note string) bool {
	if v >= low && v <= high {
		return true
	}
	r.report(r.at(field), field, "%s is out of range: %d to %d%s", shorten(r.at(field).text), low, high, note)
	return false
}

func (r *reader) durationRange(field string, v, high time.Duration) {
	if v < 0 || v > high {
		r.report(r.at(field), field, "%s is out of range: 0 to %s", shorten(r.at(field).text), high)
	}
}

func (r *reader) warn(field, format string, args ...any) {
	at := r.at(field)
	r.warnings = append(r.warnings, Warning{r.file, at.line, at.column, field, fmt.Sprintf(format, args...)})
}
