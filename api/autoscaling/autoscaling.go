// Package autoscaling is the group autoscaling: HorizontalPodAutoscalers, stored as v2 and served as v1
// as well (v1.go). The subresource scale is of this group but belongs to the kinds that have it
// (api.Scale).
package autoscaling

import (
	"github.com/coxswain-dev/coxswain/api"
)

// Kinds are the kinds of autoscaling: v2, which is stored, and v1, which is a view of it.
func Kinds() []*api.Resource {
	v2 := horizontalPodAutoscalers()
	return references.In(v2, autoscalersV1(v2))
}
