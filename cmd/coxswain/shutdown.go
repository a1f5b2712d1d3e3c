package main

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"github.com/coxswain-dev/coxswain/apiserver"
)

// shutdownFlags say how clients leave an API server for others. They are kube-apiserver's.
type shutdownFlags struct {
	delay      time.Duration
	retryAfter bool
	goaway     float64
}

func (f *shutdownFlags) add(fs *pflag.FlagSet) {
	fs.DurationVar(&f.delay, "shutdown-delay-duration", 0, "how long to go on serving after SIGTERM; /readyz "+
		"fails meanwhile, so that load balancers send clients elsewhere")
	fs.BoolVar(&f.retryAfter, "shutdown-send-retry-after", false, "after that, answer new requests with 429 and "+
		"Retry-After until those under way are done, and only then stop listening")
	fs.Float64Var(&f.goaway, "goaway-chance", 0, fmt.Sprintf("share of requests, 0 to %g, after which a client on "+
		"HTTP/2 is told to connect anew, so that a load balancer spreads clients over several servers; 0 for a "+
		"single one", apiserver.MaxGoawayChance))
}

func (f *shutdownFlags) check() error {
	if !(f.goaway >= 0 && f.goaway <= apiserver.MaxGoawayChance) { // which NaN is not either
		return fmt.Errorf("--goaway-chance: must be between 0 and %g", apiserver.MaxGoawayChance)
	}
	return nil
}
