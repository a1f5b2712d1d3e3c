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

// timing has the clock of a process's parts. The zero value is the machine's clock.
type timing struct {
	manual *virtualtime.Clock // nil for the machine's clock
	parts  *quiescence.Group  // reports whether the parts are idle; nil if manual is nil
}

// clock returns the clock, or nil for the machine's clock, which is the default of every part.
func (t timing) clock() clock.WithTicker {
	if t.manual == nil {
		return nil
	}
	return t.manual
}

// rest makes a manual clock wait, whenever it has moved, until a server and the parts that are its clients are idle.
func (t timing) rest(server *apiserver.Server) (remove func()) {
	if t.manual == nil {
		return func() {}
	}
	return t.manual.AddRest(func(ctx context.Context) error { return server.Settle(ctx, t.parts) })
}

// setTime sets f.time to a manual clock if --clock is manual.
func (f *serverFlags) setTime() error {
	switch f.clock {
	case "", "real":
		return nil
	case "manual":
	default:
		return fmt.Errorf("--clock: %q is not one of: real, manual", f.clock)
	}
	if len(f.etcd.Servers) > 0 {
		return errors.New("--clock=manual: etcd's leases use the machine's clock: omit --etcd-servers")
	}
	f.time = timing{virtualtime.New(time.Now()), &quiescence.Group{}}
	return nil
}
