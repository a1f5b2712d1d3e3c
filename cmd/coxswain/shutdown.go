package main

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"github.com/coxswain-dev/coxswain/apiserver"
)

// shutdownFlags configure how clients move from an API server to another one. They are kube-apiserver's.
type shutdownFlags struct {
	delay      time.Duration
	retryAfter bool
	goaway     float64
}

func (f *shutdownFlags) add(fs *pflag.FlagSet) {
	fs.DurationVar(&f.delay, "shutdown-delay-duration", 0, "how long to continue serving after SIGTERM; "+
		"/readyz fails meanwhile, so that load balancers send clients to other servers")
	fs.BoolVar(&f.retryAfter, "shutdown-send-retry-after", false, "after that, respond to new requests with 429 "+
		"and Retry-After until all requests in progress are done, and only then stop listening")
	fs.Float64Var(&f.goaway, "goaway-chance", 0, fmt.Sprintf("share of HTTP/2 requests, 0 to %g, that are "+
		"answered with GOAWAY, so that clients reconnect and a load balancer spreads them over several servers; use "+
		"0 for a single server", apiserver.MaxGoawayChance))
}

func (f *shutdownFlags) check() error {
	if !(f.goaway >= 0 && f.goaway <= apiserver.MaxGoawayChance) { // also rejects NaN
		return fmt.Errorf("--goaway-chance: must be between 0 and %g", apiserver.MaxGoawayChance)
	}
	return nil
}
