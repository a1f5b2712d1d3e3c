package hint_test

import (
	"testing"

	kubectllite "github.com/coxswain-dev/coxswain/kubectl-lite"
	"github.com/coxswain-dev/coxswain/kubectl-lite/clitest"
)

func TestMain(m *testing.M) { clitest.Main(m, kubectllite.Main) }
