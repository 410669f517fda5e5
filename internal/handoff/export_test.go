package handoff

import "time"

// SetDeadlines sets how long clients of new connections may take to say HELLO and to make room for an answer.
func (s *Server) SetDeadlines(hello, send time.Duration) { s.deadlines = deadlines{hello, send} }
