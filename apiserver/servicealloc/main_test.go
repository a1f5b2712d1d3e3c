package servicealloc_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/coxswain-dev/coxswain/testenv/leak"
)

func TestMain(m *testing.M) {
	// An import of etcd's starts glog's flusher, which never stops.
	leak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/golang/glog.(*fileSink).flushDaemon"))
}
