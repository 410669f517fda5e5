package client_test

import (
	"os"
	"strings"
	"testing"
)

func TestDocumentedProgramIsTheCompiledOne(t *testing.T) {
	read := func(path string) string {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	_, program, _ := strings.Cut(read("example_test.go"), "\n// A program")
	program = strings.Replace(program, "func Example() {", "func main() {", 1)
	if program == "" || !strings.Contains(read("../../docs/pods.md"), "```go\n// A program"+program+"```\n") {
		t.Error("docs/pods.md has another program than example_test.go")
	}
}
