package plugins

import (
	"math"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/coxswain-dev/coxswain/scheduler/framework"
)

// resourceStrategy scores a node by the weighted mean of the scores of its resources.
type resourceStrategy struct {
	resources []configv1.ResourceSpec
	// scoreOf returns the score of a resource, given its usage including the pod's and its capacity.
	scoreOf func(used, have int64) int64
	// countZero includes resources with score zero in the mean.
	countZero bool
	round     bool
}

var cpuAndMemory = []configv1.ResourceSpec{{Name: string(corev1.ResourceCPU), Weight: 1},
	{Name: string(corev1.ResourceMemory), Weight: 1}}

func newResourceStrategy(s *configv1.ScoringStrategy, path *field.Path) (*resourceStrategy, error) {
	if s == nil {
		s = &configv1.ScoringStrategy{}
	}
	resources, errs := resourceSpecs(s.Resources, path.Child("resources"), 100)
	r := &resourceStrategy{resources: resources, countZero: true}
	switch s.Type {
	case "", configv1.LeastAllocated:
		r.scoreOf = left
	case configv1.MostAllocated:
		r.scoreOf = taken
	case configv1.RequestedToCapacityRatio:
		if s.RequestedToCapacityRatio == nil {
			errs = append(errs, field.Required(path.Child("requestedToCapacityRatio"), ""))
			break
		}
		shape := s.RequestedToCapacityRatio.Shape
		errs = append(errs, validateShape(shape, path.Child("requestedToCapacityRatio", "shape"))...)
		r.scoreOf, r.countZero, r.round = func(used, have int64) int64 {
			return alongShape(shape, utilization(used, have))
		}, false, true
	default:
		errs = append(errs, field.NotSupported(path.Child("type"), s.Type,
			[]configv1.ScoringStrategyType{configv1.LeastAllocated, configv1.MostAllocated,
				configv1.RequestedToCapacityRatio}))
	}
	return r, errs.ToAggregate()
}

// resourceSpecs returns the configured resources, or else CPU and memory. A weight of zero means one.
func resourceSpecs(configured []configv1.ResourceSpec, path *field.Path,
	maxWeight int64) (specs []configv1.ResourceSpec, errs field.ErrorList) {
	if len(configured) == 0 {
		return cpuAndMemory, nil
	}
	for i, spec := range configured {
		if spec.Weight == 0 {
			spec.Weight = 1
		}
		if spec.Weight < 1 || spec.Weight > maxWeight {
			errs = append(errs, field.Invalid(path.Index(i).Child("weight"), spec.Weight,
				"resource weight not in valid range"))
		}
		if spec.Name == "" {
			errs = append(errs, field.Required(path.Index(i).Child("name"), ""))
		}
		specs = append(specs, spec)
	}
	return specs, errs
}

func (r *resourceStrategy) score(pod *framework.PodInfo, node *framework.NodeInfo) int64 {
	var sum, weights int64
	for i := range r.resources {
		name := corev1.ResourceName(r.resources[i].Name)
		have, want := node.Allocatable.Of(name), pod.Scored.Of(name)
		if have == 0 || want == 0 && name != corev1.ResourceCPU && name != corev1.ResourceMemory {
			continue // a resource that the pod does not request has no bearing on the score
		}
		score := r.scoreOf(node.Scored.Of(name)+want, have)
		if score == 0 && !r.countZero {
			continue
		}
		sum += score * r.resources[i].Weight
		weights += r.resources[i].Weight
	}
	switch {
	case weights == 0:
		return 0
	case r.round:
		return int64(math.Round(float64(sum) / float64(weights)))
	default:
		return sum / weights
	}
}

// left returns the share of have that is not used, 0 to MaxNodeScore.
func left(used, have int64) int64 {
	if used > have {
		return 0
	}
	return int64(float64(have-used) * float64(framework.MaxNodeScore) / float64(have))
}

// taken returns the share of have that is used, 0 to MaxNodeScore.
func taken(used, have int64) int64 {
	return int64(float64(min(used, have)) * float64(framework.MaxNodeScore) / float64(have))
}

// utilization returns used in percent of have.
func utilization(used, have int64) int64 {
	if used > have {
		return 100
	}
	return int64(float64(used) * 100 / float64(have))
}

// alongShape interpolates the score at a utilization between the points of a shape. Its scores are 0 to 10.
func alongShape(shape []configv1.UtilizationShapePoint, used int64) int64 {
	const scale = framework.MaxNodeScore / 10
	for i, p := range shape {
		x, y := int64(p.Utilization), int64(p.Score)*scale
		if used > x {
			continue
		}
		if i == 0 {
			return y
		}
		x0, y0 := int64(shape[i-1].Utilization), int64(shape[i-1].Score)*scale
		return y0 + (y-y0)*(used-x0)/(x-x0)
	}
	return int64(shape[len(shape)-1].Score) * scale
}

func validateShape(shape []configv1.UtilizationShapePoint, path *field.Path) (errs field.ErrorList) {
	if len(shape) == 0 {
		return field.ErrorList{field.Required(path, "at least one point must be specified")}
	}
	for i, p := range shape {
		if p.Utilization < 0 || p.Utilization > 100 {
			errs = append(errs, field.Invalid(path.Index(i).Child("utilization"), p.Utilization,
				"not in valid range [0-100]"))
		}
		if i > 0 && p.Utilization <= shape[i-1].Utilization {
			errs = append(errs, field.Invalid(path.Index(i).Child("utilization"), p.Utilization,
				"utilization values must be sorted in increasing order"))
		}
		if p.Score < 0 || p.Score > 10 {
			errs = append(errs, field.Invalid(path.Index(i).Child("score"), p.Score, "not in valid range [0-10]"))
		}
	}
	return errs
}
