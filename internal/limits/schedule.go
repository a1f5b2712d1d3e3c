package limits

import (
	"fmt"

	"github.com/robfig/cron/v3"
)

// ParseSchedule calls cron.ParseStandard with untrusted text. It returns an error where that panics, for example for
// "TZ=".
func ParseSchedule(text string) (schedule cron.Schedule, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("invalid schedule format: %v", r)
		}
	}()
	return cron.ParseStandard(text)
}
