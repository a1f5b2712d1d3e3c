package limits

import (
	"fmt"

	"github.com/robfig/cron/v3"
)

// ParseSchedule is cron.ParseStandard, of which a panic, as at a bare "TZ=", is an error.
func ParseSchedule(text string) (schedule cron.Schedule, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("invalid schedule format: %v", r)
		}
	}()
	return cron.ParseStandard(text)
}
