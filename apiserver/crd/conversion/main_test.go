package conversion_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/coxswain-dev/coxswain/testenv/leak"
)

func TestMain(m *testing.M) {
	// glog's flusher is started by an import of etcd's and lives as long as the process.
	leak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/golang/glog.(*fileSink).flushDaemon"))
}
