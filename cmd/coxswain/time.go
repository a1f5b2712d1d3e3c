package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/internal/clock/quiescence"
	"github.com/coxswain-dev/coxswain/internal/clock/virtualtime"
)

// timing is what the parts of a process go by. Its zero value is the machine's clock.
type timing struct {
	manual *virtualtime.Clock // nil where the clock goes by itself
	parts  *quiescence.Group  // nil with it: nobody asks whether they rest
}

// clock is nil for the machine's, which is every part's default.
func (t timing) clock() clock.WithTicker {
	if t.manual == nil {
		return nil
	}
	return t.manual
}

// rest has the clock wait, between two moments, until a server and the parts that are its clients have come to rest.
func (t timing) rest(server *apiserver.Server) (remove func()) {
	if t.manual == nil {
		return func() {}
	}
	return t.manual.AddRest(func(ctx context.Context) error { return server.Settle(ctx, t.parts) })
}

// setTime makes a clock that is moved by hand if --clock asks for one.
func (f *serverFlags) setTime() error {
	switch f.clock {
	case "", "real":
		return nil
	case "manual":
	default:
		return fmt.Errorf("--clock: %q is not one of: real, manual", f.clock)
	}
	if len(f.etcd.Servers) > 0 {
		return errors.New("--clock=manual: etcd's leases go by the machine's clock: leave out --etcd-servers")
	}
	f.time = timing{virtualtime.New(time.Now()), &quiescence.Group{}}
	return nil
}
