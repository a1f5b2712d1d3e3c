package podspec

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"

	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
)

// handler is the action of a probe or of a lifecycle hook.
type handler struct {
	exec  *corev1.ExecAction
	http  *corev1.HTTPGetAction
	tcp   *corev1.TCPSocketAction
	grpc  *corev1.GRPCAction
	sleep *corev1.SleepAction
}

func handlerOfProbe(p *corev1.Probe) handler {
	return handler{exec: p.Exec, http: p.HTTPGet, tcp: p.TCPSocket, grpc: p.GRPC}
}

func handlerOfHook(h *corev1.LifecycleHandler) handler {
	return handler{exec: h.Exec, http: h.HTTPGet, tcp: h.TCPSocket, sleep: h.Sleep}
}

func validateProbe(p *corev1.Probe, path *field.Path) field.ErrorList {
	if p == nil {
		return nil
	}
	errs := validateHandler(handlerOfProbe(p), nil, path)
	errs = append(errs, validate.NonNegative(path.Child("initialDelaySeconds"), p.InitialDelaySeconds)...)
	errs = append(errs, validate.NonNegative(path.Child("timeoutSeconds"), p.TimeoutSeconds)...)
	errs = append(errs, validate.NonNegative(path.Child("periodSeconds"), p.PeriodSeconds)...)
	errs = append(errs, validate.NonNegative(path.Child("successThreshold"), p.SuccessThreshold)...)
	errs = append(errs, validate.NonNegative(path.Child("failureThreshold"), p.FailureThreshold)...)
	if grace := p.TerminationGracePeriodSeconds; grace != nil {
		errs = append(errs, validate.Positive(path.Child("terminationGracePeriodSeconds"), *grace)...)
	}
	return errs
}

// validateHandler requires exactly one action.
func validateHandler(h handler, grace *int64, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	actions := 0
	action := func(set bool, name string, check func(fldPath *field.Path) field.ErrorList) {
		if !set {
			return
		}
		actions++
		fldPath := path.Child(name)
		if actions > 1 {
			errs = append(errs, field.Forbidden(fldPath, "may not specify more than 1 handler type"))
			return
		}
		errs = append(errs, check(fldPath)...)
	}
	action(h.exec != nil, "exec", func(fldPath *field.Path) field.ErrorList {
		if len(h.exec.Command) == 0 {
			return field.ErrorList{field.Required(fldPath.Child("command"), "")}
		}
		return nil
	})
	action(h.http != nil, "httpGet", func(fldPath *field.Path) field.ErrorList {
		return validateHTTPGet(h.http, fldPath)
	})
	action(h.tcp != nil, "tcpSocket", func(fldPath *field.Path) field.ErrorList {
		return validate.PortNumberOrName(fldPath.Child("port"), h.tcp.Port)
	})
	action(h.grpc != nil, "grpc", func(fldPath *field.Path) field.ErrorList {
		return validate.PortNumber(fldPath.Child("port"), h.grpc.Port)
	})
	action(h.sleep != nil, "sleep", func(fldPath *field.Path) field.ErrorList {
		if grace != nil && (h.sleep.Seconds < 0 || h.sleep.Seconds > *grace) {
			return field.ErrorList{field.Invalid(fldPath, h.sleep.Seconds,
				fmt.Sprintf("must be non-negative and less than terminationGracePeriodSeconds (%d)", *grace))}
		}
		return nil
	})
	if actions == 0 {
		errs = append(errs, field.Required(path, "must specify a handler type"))
	}
	return errs
}

func validateHTTPGet(h *corev1.HTTPGetAction, path *field.Path) field.ErrorList {
	errs := validate.Required(path.Child("path"), h.Path)
	errs = append(errs, validate.PortNumberOrName(path.Child("port"), h.Port)...)
	errs = append(errs, validate.OneOf(path.Child("scheme"), h.Scheme, corev1.URISchemeHTTP, corev1.URISchemeHTTPS)...)
	for _, header := range h.HTTPHeaders {
		if field.Enough(errs) {
			break
		}
		errs = append(errs, validate.Complaints(path.Child("httpHeaders"), header.Name,
			utilvalidation.IsHTTPHeaderName(header.Name))...)
	}
	return errs
}
