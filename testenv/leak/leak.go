// Package leak wraps go.uber.org/goleak for tests of servers on slow machines.
package leak

import (
	"time"

	"go.uber.org/goleak"
)

// VerifyTestMain is goleak's function with more patience. goleak gives the goroutines of closed connections half a
// second to end; here they have a minute, since on a busy machine under the race detector they take longer.
func VerifyTestMain(m goleak.TestingM, options ...goleak.Option) {
	goleak.VerifyTestMain(patient{m, options}, options...)
}

type patient struct {
	goleak.TestingM
	options []goleak.Option
}

// Run runs the tests, and waits for their goroutines if they pass.
func (p patient) Run() int {
	code := p.TestingM.Run()
	for end := time.Now().Add(time.Minute); code == 0 && goleak.Find(p.options...) != nil && time.Now().Before(end); {
		continue // Find has waited
	}
	return code
}
