package webhook

import (
	"context"

	"github.com/coxswain-dev/coxswain/apiserver/serviceresolver"
)

// resolve returns the address of one of the service's endpoints. The server at that address must present a
// certificate for the service's name.
func resolve(ctx context.Context, objects serviceresolver.Reader, s *Service) (string, error) {
	return serviceresolver.Resolve(ctx, objects, s.Namespace, s.Name, s.port())
}
