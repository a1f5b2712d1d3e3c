package snapshots_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/coxswain-dev/coxswain/testenv/leak"
)

func TestMain(m *testing.M) {
	leak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/golang/glog.(*fileSink).flushDaemon"))
}
