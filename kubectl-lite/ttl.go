package kubectllite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/resource"

	"github.com/coxswain-dev/coxswain/kubectl-lite/session"
)

// ttlAnnotation is the lifetime of an object. The server deletes the object this long after the annotation was set.
const ttlAnnotation = "coxswain.dev/ttl"

type ttlOptions struct {
	*session.Session
	writing
}

func newTTL(s *session.Session) *cobra.Command {
	o := &ttlOptions{Session: s}
	cmd := &cobra.Command{
		Use:   "ttl (TYPE NAME | TYPE/NAME) DURATION|none",
		Short: "Let an object remove itself after a while",
		Example: `  kubectl-lite ttl pod/debug 30m
  kubectl-lite ttl ns preview-42 8h
  kubectl-lite ttl pod/debug none`,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) < 2 {
				return session.UsageErrorf(cmd, "an object and a duration are required")
			}
			if err := o.complete(cmd); err != nil {
				return err
			}
			return o.run(cmd.Context(), args[:len(args)-1], args[len(args)-1])
		},
	}
	o.addFlags(cmd, "kubectl-ttl")
	return cmd
}

func (o *ttlOptions) run(_ context.Context, objects []string, lifetime string) error {
	var value any
	done := "will stay"
	if lifetime != "none" {
		d, err := time.ParseDuration(lifetime)
		if err != nil || d <= 0 {
			return fmt.Errorf("%q is no lifetime: give a duration such as 90s, 30m or 8h, or none", lifetime)
		}
		value, done = d.String(), fmt.Sprintf("removes itself in %s", d)
	}
	if err := o.requireTTL(); err != nil {
		return err
	}
	patch, err := json.Marshal(
		map[string]any{"metadata": map[string]any{"annotations": map[string]any{ttlAnnotation: value}}})
	if err != nil {
		return err
	}
	namespace, _, err := o.Namespace()
	if err != nil {
		return err
	}
	return o.NewBuilder().Unstructured().NamespaceParam(namespace).DefaultNamespace().
		ResourceTypeOrNameArgs(false, objects...).ContinueOnError().Flatten().Do().
		Visit(func(info *resource.Info, err error) error {
			if err != nil {
				return err
			}
			if o.onlyPretend() {
				return o.show(o.Session, info.Object, done)
			}
			obj, err := o.helper(info).Patch(info.Namespace, info.Name, types.MergePatchType, patch, nil)
			if err != nil {
				return err
			}
			return o.show(o.Session, obj, done)
		})
}

// requireTTL returns an error if the server does not support the annotation: it would keep the object.
func (o *ttlOptions) requireTTL() error {
	version, err := serverVersion(o.Session)
	if err != nil {
		return err
	}
	if !strings.Contains(version.GitVersion, "coxswain") {
		return errors.New("this server (" + version.GitVersion +
			") does not remove objects by their lifetime; Coxswain does")
	}
	return nil
}
