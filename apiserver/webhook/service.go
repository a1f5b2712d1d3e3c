package webhook

import (
	"context"

	"github.com/coxswain-dev/coxswain/apiserver/serviceresolver"
)

// Objects reads what services are resolved by.
type Objects = serviceresolver.Objects

// resolve returns the address of one of the service's endpoints. Whoever answers has to show a certificate of the
// service's name.
func resolve(ctx context.Context, objects Objects, s *Service) (string, error) {
	return serviceresolver.Resolve(ctx, objects, s.Namespace, s.Name, s.port())
}
