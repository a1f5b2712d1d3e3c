package authz

import (
	"errors"
	"fmt"
)

// Members are the authorizers that modes name and that have to be made: of the others there is one of each.
type Members struct {
	RBAC *RBAC
	Node *Node
	// Webhook may be nil where the mode is not used.
	Webhook *Webhook
}

// Union returns the authorizers of the given modes (--authorization-mode), in their order.
func (m Members) Union(modes []string) (Union, error) {
	var union Union
	for _, mode := range modes {
		switch mode {
		case "RBAC":
			union = append(union, m.RBAC)
		case "Node":
			union = append(union, m.Node)
		case "Webhook":
			if m.Webhook == nil {
				return nil, errors.New("authorization mode Webhook needs a webhook")
			}
			union = append(union, m.Webhook)
		case "AlwaysAllow":
			union = append(union, AlwaysAllow{})
		case "AlwaysDeny":
			union = append(union, AlwaysDeny{})
		default:
			return nil, fmt.Errorf(
				"unknown authorization mode %q, want one of AlwaysAllow, AlwaysDeny, Node, RBAC, Webhook", mode)
		}
	}
	return union, nil
}
