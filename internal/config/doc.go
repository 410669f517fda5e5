// Package config reads the agent's pool configuration.
//
// Reading is strict: an unknown field, a duplicate key, a value of the wrong type or out of range, or a second document
// refuses the whole file, and all mistakes are reported at once, each with its line, column and field. What only shows
// on a node (a NIC that is missing, a queue that two pools select) is found by [Config.Assign] and never takes down a
// pool that it does not concern.
package config
