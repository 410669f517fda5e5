package client

import "time"

// SetTimeout sets how long an answer is waited for.
func (c *Client) SetTimeout(d time.Duration) { c.timeout = d }
