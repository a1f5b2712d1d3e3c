package main

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"
)

// forever is a lifetime without an end, in a flag.
const forever = "forever"

// simulatedFlags configure Nodes with the simulated runtime.
type simulatedFlags struct {
	runFor string
}

func (f *simulatedFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(&f.runFor, "simulated-run-for", "1s", "how long simulated containers of pods with restartPolicy "+
		"Never or OnFailure run before they succeed, as pods of Jobs do; forever for no end, and annotations of the "+
		"pod override it")
}

// isLifetime accepts a duration, or forever.
func isLifetime(text string) error {
	if text == forever {
		return nil
	}
	if d, err := time.ParseDuration(text); err != nil || d < 0 {
		return fmt.Errorf("%q is neither a duration, such as 1s, nor %s", text, forever)
	}
	return nil
}

// completeAfter returns the lifetime of containers that complete by themselves; nil is unlimited. checkFlags has
// checked the flag.
func (f *simulatedFlags) completeAfter() *time.Duration {
	d, err := time.ParseDuration(f.runFor)
	if err != nil {
		return nil
	}
	return &d
}
