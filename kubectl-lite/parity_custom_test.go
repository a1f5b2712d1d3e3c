package kubectllite

// customSteps use a kind that they define.
var customSteps = []parityStep{
	{args: "get backups"},
	{args: "create -f -", stdin: backupDefinition},
	{args: "wait crd/backups.example.com --for=condition=Established --timeout=30s"},
	{args: "get crd backups.example.com"},
	{args: "get crd backups.example.com -o wide"},
	{args: "api-resources --api-group=example.com -o wide"},
	{args: "explain backups"},
	{args: "explain bk.spec"},
	{args: "explain backup.spec.schedule"},
	{args: "explain backups --recursive"},
	{args: "explain backups.spec.nope"},
	{args: "get bk"},
	{args: "create -f -", stdin: backup("nightly", `{schedule: "0 1 * * *"}`)},
	{args: "create -f -", stdin: backup("other", `{schedule: "0 1 * * *", copies: 0}`)},
	{args: "create -f -", stdin: backup("other", `{schedule: "0 1 * * *", copies: 11}`)},
	{args: "create -f -", stdin: backup("other", `{schedule: "0 1 * * *", nope: 1}`)},
	{args: "create --validate=warn --dry-run=server -f -", stdin: backup("other", `{schedule: "0 1 * * *", nope: 1}`)},
	{args: "apply -f -", stdin: backup("nightly", `{schedule: "0 2 * * *"}`)},
	{args: "apply --server-side --field-manager=one -f -", stdin: backup("weekly", `{schedule: "0 3 * * 0"}`)},
	{args: "apply --server-side --field-manager=two -f -", stdin: backup("weekly", `{schedule: "0 4 * * 0"}`)},
	{args: "diff -f -", stdin: backup("nightly", `{schedule: "0 5 * * *"}`)},
	{args: "get backups"},
	{args: "get backups -o wide"},
	{args: "get backups.example.com nightly -o yaml"},
	{args: "get backups.v1.example.com/nightly -o jsonpath='{.spec.copies}'"},
	{args: "get backups --field-selector=spec.schedule='0 2 * * *' -o name"},
	{args: "get archive"},
	{args: "scale bk/nightly --replicas=5"},
	{args: "scale bk/nightly --replicas=50"},
	{args: "patch bk nightly --type=merge -p '{\"spec\":{\"copies\":2}}'"},
	{args: "patch bk nightly -p '{\"spec\":{\"copies\":2}}'"},
	{args: "patch bk nightly --subresource=status --type=merge -p '{\"status\":{\"copies\":2}}'"},
	{args: "label bk nightly a=b"},
	{args: "annotate bk --all c=d"},
	{args: "set image bk/nightly a=b"},
	{args: "rollout status bk/nightly"},
	{args: "auth can-i delete backups"},
	{args: "wait bk/nightly --for=jsonpath='{.status.copies}'=2 --timeout=10s"},
	{args: "wait bk/nightly --for=condition=Ready --timeout=1ms"},
	{args: "delete bk weekly"},
	{args: "delete crd backups.example.com"},
	{args: "get crd backups.example.com"},
}

func backup(name, spec string) string {
	return "{apiVersion: example.com/v1, kind: Backup, metadata: {name: " + name + "}, spec: " + spec + "}\n"
}

const backupDefinition = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: backups.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: backups, kind: Backup, shortNames: [bk], categories: [archive]}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}, scale: {specReplicasPath: .spec.copies, statusReplicasPath: .status.copies}}
    selectableFields: [{jsonPath: .spec.schedule}]
    additionalPrinterColumns:
    - {name: Schedule, type: string, jsonPath: .spec.schedule}
    - {name: Copies, type: integer, jsonPath: .spec.copies, priority: 1, description: How many are kept}
    schema:
      openAPIV3Schema:
        type: object
        description: A Backup copies a volume on a schedule.
        properties:
          spec:
            type: object
            description: Which copies there are.
            required: [schedule]
            properties:
              schedule: {type: string, description: In the form of cron.}
              copies: {type: integer, default: 3, minimum: 1, description: How many are kept.}
            x-kubernetes-validations:
            - {rule: "self.copies <= 10", message: at most ten copies}
          status: {type: object, properties: {copies: {type: integer}}}
`
