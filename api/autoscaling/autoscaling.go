// Package autoscaling is the group autoscaling: HorizontalPodAutoscalers, stored as v2 and also served as v1 (v1.go).
// The subresource scale has a kind of this group, but is registered with the kinds that have it (api.Scale).
package autoscaling

import (
	"github.com/coxswain-dev/coxswain/api"
)

// Kinds returns the kinds of autoscaling: v2, which is stored, and v1, which is converted from it.
func Kinds() []*api.Resource {
	v2 := horizontalPodAutoscalers()
	return references.In(v2, autoscalersV1(v2))
}
