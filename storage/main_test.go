package storage

import (
	"testing"

	"github.com/coxswain-dev/coxswain/testenv/leak"
)

func TestMain(m *testing.M) { leak.VerifyTestMain(m) }
