package config

// Load reads a configuration file. The error is [Errors] when the file could be read.
func Load(path string) (*Config, []Warning, error) { panic("not yet") }

// Parse reads a configuration from memory; name stands for the file in messages.
func Parse(name string, data []byte) (*Config, []Warning, error) { panic("not yet") }
