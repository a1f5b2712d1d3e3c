package kubectllite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
)

type copyOptions struct {
	*session
	container  string
	noPreserve bool
	retries    int
}

func newCopy(s *session) *cobra.Command {
	o := &copyOptions{session: s}
	cmd := &cobra.Command{
		Use:   "cp <file-spec-src> <file-spec-dest>",
		Short: "Copy files and directories to and from containers",
		Long:  "Copies through tar, which must be in the container's image.",
		Example: `  kubectl-lite cp conf/ web-0:/etc/app
  kubectl-lite cp shop/web-0:/var/log/app.log ./app.log -c nginx`,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 {
				return errors.New("source and destination are required")
			}
			return o.run(contextOf(cmd), args[0], args[1])
		},
	}
	cmdutil.AddContainerVarFlags(cmd, &o.container, "")
	cmd.Flags().BoolVar(&o.noPreserve, "no-preserve", false, "The copied file/directory's ownership and permissions will not be preserved in the container")
	cmd.Flags().IntVar(&o.retries, "retries", 0, "Set number of retries to complete a copy operation from a container. Specify 0 to disable or any negative value for infinite retrying. The default is 0 (no retry).")
	return cmd
}

// place is a path on this machine, or, where pod is set, one in a container.
type place struct {
	namespace, pod, path string
}

var errPlace = errors.New("filespec must match the canonical format: [[namespace/]pod:]file/path")

func parsePlace(text string) (place, error) {
	pod, file, remote := strings.Cut(text, ":")
	if !remote {
		return place{path: text}, nil
	}
	p := place{pod: pod, path: file}
	if namespace, name, two := strings.Cut(pod, "/"); two {
		p.namespace, p.pod = namespace, name
	}
	if p.pod == "" || strings.Contains(p.pod, "/") {
		return place{}, errPlace
	}
	return p, nil
}

func (o *copyOptions) run(ctx context.Context, source, destination string) error {
	from, err := parsePlace(source)
	if err != nil {
		return err
	}
	to, err := parsePlace(destination)
	switch {
	case err != nil:
		return err
	case from.pod != "" && to.pod != "":
		return errors.New("one of src or dest must be a local file specification")
	case from.path == "" || to.path == "":
		return errors.New("filepath can not be empty")
	case from.pod != "":
		return o.download(ctx, from, to.path)
	case to.pod != "":
		return o.upload(ctx, from.path, to)
	}
	return errors.New("one of src or dest must be a remote file specification")
}

// in runs a command in the container of a place, with these streams.
func (o *copyOptions) in(ctx context.Context, at place, stdin io.Reader, out, errOut io.Writer, command ...string) error {
	client, err := o.KubernetesClientSet()
	if err != nil {
		return err
	}
	namespace := at.namespace
	if namespace == "" {
		if namespace, _, err = o.namespace(); err != nil {
			return err
		}
	}
	var pod *corev1.Pod
	if pod, err = client.CoreV1().Pods(namespace).Get(ctx, at.pod, metav1.GetOptions{}); err != nil {
		return err
	}
	there := *o.session
	there.verbatim = genericiooptions.IOStreams{In: stdin, Out: out, ErrOut: errOut}
	remote := &streaming{session: &there, container: o.container, stdin: stdin != nil}
	return remote.run(ctx, pod, command)
}

// upload sends a file or folder. Where the destination is a folder it goes into that.
func (o *copyOptions) upload(ctx context.Context, source string, to place) error {
	if _, err := os.Stat(source); err != nil {
		return fmt.Errorf("%s doesn't exist in local filesystem", source)
	}
	target := path.Clean(to.path)
	if err := o.in(ctx, to, nil, io.Discard, o.ErrOut, "test", "-d", to.path); err == nil {
		target = path.Join(to.path, filepath.Base(filepath.Clean(source)))
	}
	command := []string{"tar", "-xmf", "-"}
	if o.noPreserve {
		command = []string{"tar", "--no-same-permissions", "--no-same-owner", "-xmf", "-"}
	}
	if dir := path.Dir(target); dir != "." {
		command = append(command, "-C", dir)
	}
	reader, writer := io.Pipe()
	var packed error
	var packing sync.WaitGroup
	packing.Go(func() {
		packed = packTar(writer, source, path.Base(target))
		writer.CloseWithError(packed)
	})
	err := o.in(ctx, to, reader, o.Out, o.ErrOut, command...)
	reader.CloseWithError(err) //nolint:errcheck // always nil
	packing.Wait()
	if packed != nil && !errors.Is(packed, io.ErrClosedPipe) && !errors.Is(packed, err) {
		return packed
	}
	return err
}

// download fetches a file or folder.
func (o *copyOptions) download(ctx context.Context, from place, target string) error {
	archive := &resumable{ctx: ctx, options: o, from: from}
	defer archive.close()
	archive.open()
	// tar leaves out the leading slash, and so does who unpacks. What climbs out of the root stays in it.
	inside := strings.TrimPrefix(path.Clean("/"+strings.TrimLeft(from.path, "/")), "/")
	prefix := strings.TrimLeft(path.Clean(from.path), "/")
	for strings.HasPrefix(prefix, "../") {
		prefix = strings.TrimPrefix(prefix, "../")
	}
	if prefix == "." || prefix == ".." {
		prefix = inside
	}
	return o.unpackTar(archive, prefix, target, func(link, to string) {
		fmt.Fprintf(o.ErrOut, "warning: skipping symlink: %q -> %q (consider using \"%s exec -n %q %q -- tar cf - %q | tar xf -\")\n",
			link, to, Name, from.namespace, from.pod, from.path)
	})
}

// resumable reads an archive that is made in a container. A stream that breaks is begun again behind what was read.
type resumable struct {
	ctx     context.Context
	options *copyOptions
	from    place

	reader  *io.PipeReader
	running sync.WaitGroup
	read    int64
	tried   int
}

func (r *resumable) open() {
	reader, writer := io.Pipe()
	r.reader = reader
	command := []string{"tar", "cf", "-", r.from.path}
	if r.options.retries != 0 {
		quoted := "'" + strings.ReplaceAll(r.from.path, "'", `'\''`) + "'"
		command = []string{"sh", "-c", fmt.Sprintf("tar cf - %s | tail -c+%d", quoted, r.read+1)}
	}
	r.running.Go(func() {
		writer.CloseWithError(r.options.in(r.ctx, r.from, nil, writer, r.options.ErrOut, command...))
	})
}

func (r *resumable) Read(p []byte) (int, error) {
	n, err := r.reader.Read(p)
	r.read += int64(n)
	if err == nil || err == io.EOF {
		return n, err
	}
	if r.options.retries >= 0 && r.tried >= r.options.retries {
		return n, err
	}
	r.tried++
	fmt.Fprintf(r.options.ErrOut, "Resuming copy at %d bytes, retry %d/%d\n", r.read, r.tried, r.options.retries)
	r.open()
	return n, nil
}

func (r *resumable) close() {
	r.reader.Close() //nolint:errcheck // always nil
	r.running.Wait()
}
