package etcd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/coxswain-dev/coxswain/storage"
)

// Status returns the status of the embedded etcd, or of the member that the client is connected to.
func (e *backend) Status(ctx context.Context) (*storage.Status, error) {
	if err := e.connected(ctx); err != nil {
		return nil, readError(err)
	}
	response, err := e.status(ctx)
	if err != nil {
		return nil, readError(err)
	}
	s := &storage.Status{
		Revision: response.Header.Revision,
		Size:     response.DbSize,
		InUse:    response.DbSizeInUse,
		Quota:    response.DbSizeQuota,
		Embedded: e.inProcess(),
		DiskFull: e.disk.full() != nil,
		Reserve:  diskReserve,
	}
	// The alarms are among the errors, in the text form of their message. A request for the
	// alarms themselves would go through consensus.
	text := strings.Join(response.Errors, "\n")
	for _, a := range []storage.Alarm{storage.NoSpace, storage.Corrupt} {
		if strings.Contains(text, "alarm:"+string(a)) {
			s.Alarms = append(s.Alarms, a)
		}
	}
	return s, nil
}

func (e *backend) status(ctx context.Context) (*clientv3.StatusResponse, error) {
	if e.inProcess() {
		return e.client.Status(ctx, "")
	}
	// clientv3 would open a new connection for every request.
	response, err := pb.NewMaintenanceClient(e.client.ActiveConnection()).Status(ctx, &pb.StatusRequest{})
	return (*clientv3.StatusResponse)(response), err
}

// Defragment defragments the members of an external etcd one after another, so that only one member at a time is
// blocked.
func (e *backend) Defragment(ctx context.Context) error {
	if e.inProcess() {
		// v3client's own method reports to a health service that an etcd without listeners does not
		// have.
		status, err := e.Status(ctx)
		if err != nil {
			return err
		}
		if err := e.disk.roomToCopy(status.InUse); err != nil {
			return fmt.Errorf("defragment: %w", err)
		}
		if err := e.server.Server.Backend().Defrag(); err != nil {
			return fmt.Errorf("defragment: %w", err)
		}
		return nil
	}
	for _, endpoint := range e.client.Endpoints() {
		if _, err := e.client.Defragment(ctx, endpoint); err != nil {
			return fmt.Errorf("defragment %s: %w", endpoint, readError(err))
		}
	}
	return nil
}

func (e *backend) Disarm(ctx context.Context, a storage.Alarm) error {
	raised, err := e.client.AlarmList(ctx)
	if err != nil {
		return readError(err)
	}
	var failed []error
	for _, member := range raised.Alarms {
		if member.Alarm.String() == string(a) {
			_, err := e.client.AlarmDisarm(ctx, (*clientv3.AlarmMember)(member))
			failed = append(failed, err)
		}
	}
	if err := errors.Join(failed...); err != nil {
		return fmt.Errorf("disarm %s: %w", a, readError(err))
	}
	return nil
}

func (e *backend) Snapshot(ctx context.Context) (io.ReadCloser, error) {
	if err := e.connected(ctx); err != nil {
		return nil, readError(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	stream, err := e.client.Snapshot(ctx)
	if err != nil {
		cancel()
		return nil, readError(err)
	}
	return &snapshotStream{stream, cancel}, nil
}

// snapshotStream ends when it is closed. Without this, clientv3 would read until its context ends. etcd's read
// transaction would stay open as long, and no page of the database would be freed.
type snapshotStream struct {
	io.ReadCloser
	cancel context.CancelFunc
}

func (s *snapshotStream) Close() error {
	s.cancel()
	return s.ReadCloser.Close()
}

// noteKey holds the data that all servers on one etcd have to agree on. It has no slash, so that it is
// below no server's prefix.
const noteKey = "coxswain-history"

func (e *backend) Note(ctx context.Context) (*storage.Note, error) {
	if err := e.connected(ctx); err != nil {
		return nil, readError(err)
	}
	response, err := e.client.Get(ctx, noteKey)
	if err != nil {
		return nil, readError(err)
	}
	note := &storage.Note{At: response.Header.Revision}
	if len(response.Kvs) > 0 {
		note.Value, note.Revision = response.Kvs[0].Value, response.Kvs[0].ModRevision
	}
	return note, nil
}

func (e *backend) ReplaceNote(ctx context.Context, old *storage.Note, value []byte) (bool, error) {
	if err := e.connected(ctx); err != nil {
		return false, writeError(err)
	}
	response, err := e.client.Txn(ctx).
		If(clientv3.Compare(clientv3.ModRevision(noteKey), "=", old.Revision)).
		Then(clientv3.OpPut(noteKey, string(value))).
		Commit()
	if err != nil {
		return false, writeError(err)
	}
	return response.Succeeded, nil
}
