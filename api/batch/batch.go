// Package batch is the group batch/v1: Jobs, which run to completion, and CronJobs, which create Jobs on a schedule.
package batch

import (
	"github.com/coxswain-dev/coxswain/api"
)

// Kinds returns the kinds of batch, in the order of discovery. Each call makes new registrations.
func Kinds() []*api.Resource {
	return references.In(cronJobs(), jobs())
}
