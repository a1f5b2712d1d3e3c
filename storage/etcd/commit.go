package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/coxswain-dev/coxswain/storage"
)

func (e *backend) Commit(ctx context.Context, writes []storage.Write) (*storage.Outcome, error) {
	if err := e.connected(ctx); err != nil {
		return nil, writeError(err)
	}
	if err := e.disk.admit(writes); err != nil {
		return nil, err
	}
	outcome, err := e.commit(ctx, writes)
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		// A lease that is still shared here was revoked, so the transaction was rejected. Retry it with new leases.
		e.leases.forget()
		outcome, err = e.commit(ctx, writes)
	}
	if err != nil {
		return nil, writeError(err)
	}
	e.disk.wrote()
	return outcome, nil
}

// commit performs one transaction. Its else branch reads every key, so that a failed compare can be explained without a
// further request.
func (e *backend) commit(ctx context.Context, writes []storage.Write) (*storage.Outcome, error) {
	compares := make([]clientv3.Cmp, 0, len(writes))
	puts := make([]clientv3.Op, len(writes))
	gets := make([]clientv3.Op, len(writes))
	var taken []*sharedLease
	for i, w := range writes {
		key := e.prefix + w.Key.String()
		if w.Expect != storage.AnyRevision {
			compares = append(compares, clientv3.Compare(clientv3.ModRevision(key), "=", w.Expect))
		}
		gets[i] = clientv3.OpGet(key)
		switch w.Op {
		case storage.Delete:
			puts[i] = clientv3.OpDelete(key, clientv3.WithPrevKV())
			continue
		case storage.Check:
			puts[i] = clientv3.OpGet(key, clientv3.WithCountOnly())
			continue
		}
		lease := clientv3.NoLease
		if w.TTL > 0 {
			shared, err := e.leases.take(ctx, w.TTL)
			if err != nil {
				return nil, notSent{err}
			}
			lease, taken = shared.id, append(taken, shared)
		}
		option := clientv3.WithLease(lease)
		if w.KeepTTL {
			option = clientv3.WithIgnoreLease()
		}
		puts[i] = clientv3.OpPut(key, "", option)
		puts[i].WithValueBytes(w.Value) // etcd copies the value into its log, the client copies it into its request
	}
	if err := ctx.Err(); err != nil {
		return nil, notSent{err}
	}
	guarded, answered := e.elections.guard(ctx)
	response, err := e.client.Txn(guarded).If(compares...).Then(puts...).Else(gets...).Commit()
	if err != nil && context.Cause(guarded) == errNewLeader {
		err = errNewLeader
	}
	answered()
	if err != nil {
		return nil, err
	}
	e.elections.note(response.Header.RaftTerm)
	outcome := &storage.Outcome{
		Applied:  response.Succeeded,
		Revision: response.Header.Revision,
		Before:   make([]storage.KV, len(writes)),
	}
	if !response.Succeeded {
		for _, lease := range taken {
			lease.objects.Add(-1)
		}
	}
	for i, answer := range response.Responses {
		outcome.Before[i] = e.before(answer)
	}
	return outcome, nil
}

func (e *backend) before(answer *pb.ResponseOp) storage.KV {
	kvs := answer.GetResponseRange().GetKvs()
	if deleted := answer.GetResponseDeleteRange(); deleted != nil {
		kvs = deleted.PrevKvs
	}
	if len(kvs) == 0 {
		return storage.KV{}
	}
	return e.kv(kvs[0])
}

// notSent marks an error that occurred before the write was sent.
type notSent struct{ error }

func (n notSent) Unwrap() error { return n.error }

// writeError translates the errors of a write. They differ in the one question that matters: was the write applied?
func writeError(err error) error {
	var early notSent
	switch {
	case errors.Is(err, rpctypes.ErrNoSpace):
		return fmt.Errorf("%w: %w", storage.ErrNoSpace, err)
	case errors.Is(err, rpctypes.ErrRequestTooLarge), errors.Is(err, rpctypes.ErrTooManyOps), tooLargeToSend(err):
		return fmt.Errorf("%w: %w", storage.ErrTooLarge, err)
	case errors.As(err, &early),
		errors.Is(err, rpctypes.ErrNoLeader), // rejected before it was proposed
		errors.Is(err, rpctypes.ErrTooManyRequests),
		errors.Is(err, rpctypes.ErrUnhealthy),
		errors.Is(err, rpctypes.ErrCorrupt),
		neverConnected(err):
		return fmt.Errorf("%w: %w", storage.ErrUnavailable, err)
	case refused(err):
		return fmt.Errorf("etcd refused the write: %w", err)
	}
	return fmt.Errorf("%w: %w", storage.ErrUnknownOutcome, err)
}

// readError translates the errors of a read.
func readError(err error) error {
	switch {
	case errors.Is(err, rpctypes.ErrCompacted):
		return fmt.Errorf("%w: %w", storage.ErrExpired, err)
	case errors.Is(err, rpctypes.ErrFutureRev):
		return fmt.Errorf("%w: %w", storage.ErrFuture, err)
	case refused(err):
		return fmt.Errorf("etcd refused the read: %w", err)
	}
	return fmt.Errorf("%w: %w", storage.ErrUnavailable, err)
}

// refused reports whether etcd has answered with an error that a retry would not change.
func refused(err error) bool {
	switch codeOf(err) {
	case codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated, codes.FailedPrecondition:
		return true
	}
	return false
}

func codeOf(err error) codes.Code {
	var etcdError rpctypes.EtcdError
	if errors.As(err, &etcdError) {
		return etcdError.Code()
	}
	if s, ok := status.FromError(err); ok {
		return s.Code()
	}
	return codes.Unknown
}

// neverConnected reports whether a request failed before a connection was established. gRPC has no code that
// distinguishes this from a connection that was lost after the request was sent, but it has these messages.
func neverConnected(err error) bool {
	s, ok := status.FromError(err)
	if !ok || s.Code() != codes.Unavailable && s.Code() != codes.DeadlineExceeded {
		return false
	}
	return strings.Contains(s.Message(), "while dialing") ||
		strings.Contains(s.Message(), "no children to pick from") ||
		strings.Contains(s.Message(), "latest balancer error")
}

func tooLargeToSend(err error) bool {
	s, ok := status.FromError(err)
	return ok && s.Code() == codes.ResourceExhausted && strings.Contains(s.Message(), "larger than max")
}
