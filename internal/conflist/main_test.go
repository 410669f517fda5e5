package conflist

import (
	"os"
	"testing"

	"github.com/afxdp-project/afxdp/internal/testutil"
)

func TestMain(m *testing.M) { os.Exit(testutil.Main(m)) }
