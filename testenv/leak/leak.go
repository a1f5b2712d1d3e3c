// Package leak is go.uber.org/goleak for tests of servers on slow machines.
package leak

import (
	"time"

	"go.uber.org/goleak"
)

// VerifyTestMain is goleak's, which gives the goroutines of closed connections half a second to end, but with
// a minute: on a busy machine under the race detector they take longer.
func VerifyTestMain(m goleak.TestingM, options ...goleak.Option) {
	goleak.VerifyTestMain(patient{m, options}, options...)
}

type patient struct {
	goleak.TestingM
	options []goleak.Option
}

// Run runs the tests, and where they pass waits for their goroutines.
func (p patient) Run() int {
	code := p.TestingM.Run()
	for end := time.Now().Add(time.Minute); code == 0 && goleak.Find(p.options...) != nil && time.Now().Before(end); {
		continue // Find has waited
	}
	return code
}
